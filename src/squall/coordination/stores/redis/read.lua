-- Items of a stream behind a cursor, held ones among them, in order.
-- ARGV: stream, birth and number of the cursor, limit.
local base, birth, after, limit = at(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now_birth = redis.call('HGET', base, '@b')
if not now_birth then return {NOW, ''} end
-- A cursor from before an expiry or a loss of data: begin at the front.
if now_birth ~= birth then after = 0 end
local numbers = redis.call('ZRANGEBYSCORE', base .. '#r', '(' .. after, '(inf', 'LIMIT', 0, limit)
local held = redis.call('ZRANGE', base .. '#h', 0, -1)
if #held > 1 then
  for _, n in ipairs(held) do
    if n ~= '@' and tonumber(n) > after then numbers[#numbers + 1] = n end
  end
  table.sort(numbers, function(a, b) return tonumber(a) < tonumber(b) end)
end
local out = {NOW, now_birth}
for i = 1, math.min(limit, #numbers) do
  out[#out + 1] = numbers[i]
  out[#out + 1] = redis.call('HGET', base, numbers[i])
end
return out
