-- How many items a stream has, how many are held, and the age of the oldest in ms.
local base = at(ARGV[1])
if redis.call('EXISTS', base) == 0 then return {0, 0, 0} end
local ready = redis.call('ZCARD', base .. '#r') - 1
local kept_by = redis.call('ZCARD', base .. '#h') - 1
-- Claims that ran out still lie in #h until the next take; they are not held.
local held = redis.call('ZCOUNT', base .. '#h', '(' .. NOW, '(inf')
local first = redis.call('ZRANGE', base .. '#r', 0, 0)[1]
for _, n in ipairs(redis.call('ZRANGE', base .. '#h', 0, -1)) do
  if n ~= '@' and (first == '@' or tonumber(n) < tonumber(first)) then first = n end
end
local oldest = 0
if first ~= '@' then
  oldest = NOW - string.match(redis.call('HGET', base, first), '^%d+')
end
return {ready + kept_by, held, oldest}
