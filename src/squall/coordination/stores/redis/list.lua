-- One page of the index of a kind: keys that were not written for `idle` ms, oldest first.
-- ARGV: kind, idle, score and key behind which to go on, limit.
local index, idle, after, key, limit = P .. '#index:' .. ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local skip, out = 0, {NOW}
-- Several keys may have one score; those up to `key` were in the page before.
if key ~= '' then
  local same = redis.call('ZRANGEBYSCORE', index, after, after)
  for _, other in ipairs(same) do if other <= key then skip = skip + 1 end end
end
local got = redis.call(
  'ZRANGEBYSCORE', index, after, NOW - idle, 'WITHSCORES', 'LIMIT', skip, limit)
for _, part in ipairs(got) do out[#out + 1] = part end
return out
