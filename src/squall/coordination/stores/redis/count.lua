-- How many keys the index of each kind has, and how many streams there are of each kind.
local out = {}
for _, kind in ipairs(redis.call('SMEMBERS', P .. '#kinds')) do
  out[#out + 1] = kind
  out[#out + 1] = redis.call('ZCARD', P .. '#index:' .. kind)
end
redis.call('ZREMRANGEBYSCORE', P .. '#streams', '-inf', NOW)
for _, name in ipairs(redis.call('ZRANGE', P .. '#streams', 0, -1)) do
  if redis.call('EXISTS', at(name)) == 1 then
    out[#out + 1] = string.match(name, '^[^/]*')
    out[#out + 1] = 1
  end
end
return out
