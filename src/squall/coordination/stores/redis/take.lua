-- Gives up to `limit` free items to an owner.
-- ARGV: stream, owner, request, lease, limit, how long the request is remembered, and optionally
-- key, condition and version of a record that must hold.
-- Answers {now, birth, number, body, attempt, until, ...}, or {-1} if the condition does not hold.
local base, owner, request = at(A[1]), A[2], A[3]
local lease, limit, remembered = tonumber(A[4]), tonumber(A[5]), A[6]
local birth, last = call('HGET', base, '@b'), base .. '#q:' .. owner
if not birth then return {NOW, ''} end
-- HGET gives false for an absent record, and so does the right side for the condition 1 (absent).
if A[7] and A[8] ~= '0' then
  local version = call('HGET', at(A[7]), 'n')
  if version ~= (A[8] == '2' and A[9]) then return {-1, ''} end
end
local known = request ~= '' and call('GET', last)
local out = {NOW, birth}
local function give(n, body, attempt, until_ms)
  local k = #out
  out[k + 1], out[k + 2], out[k + 3], out[k + 4] = n, body, attempt, until_ms
end
-- The same request again: its reply was lost, and it gets the claims that it still holds.
if known and string.sub(known, 1, #request + 1) == request .. '|' then
  for n, attempt in string.gmatch(string.sub(known, #request + 2), '(%d+):(%d+)') do
    local claim = owner .. ':' .. attempt .. ':' .. n .. '|' .. attempt
    local until_ms = call('ZSCORE', base .. '#h', n)
    local now = call('HMGET', base, 'c' .. n, n)
    if until_ms and now[1] == claim then give(n, now[2], attempt, until_ms) end
  end
  return out
end
-- Claims that ran out. Nothing runs in Redis when they do: the next take frees them.
for _, n in ipairs(call('ZRANGEBYSCORE', base .. '#h', '-inf', NOW, 'LIMIT', 0, limit)) do
  call('ZREM', base .. '#h', n)
  call('ZADD', base .. '#r', n, n)
end
local free = call('ZRANGEBYSCORE', base .. '#r', '-inf', '(inf', 'LIMIT', 0, limit)
if #free == 0 then return out end
local asked, taken, fields, held = {}, {}, {}, {}
for i, n in ipairs(free) do asked[2 * i - 1], asked[2 * i] = 'c' .. n, n end
local found = call('HMGET', base, unpack(asked))
for i, n in ipairs(free) do
  local before = found[2 * i - 1]
  local attempt = (before and tonumber(string.match(before, '|(%d+)$')) or 0) + 1
  taken[i] = n .. ':' .. attempt
  fields[2 * i - 1] = 'c' .. n
  fields[2 * i] = owner .. ':' .. attempt .. ':' .. n .. '|' .. attempt
  held[2 * i - 1], held[2 * i] = NOW + lease, n
  give(n, found[2 * i], attempt, NOW + lease)
end
if request ~= '' then
  call('SET', last, request .. '|' .. table.concat(taken, ','), 'PX', remembered)
end
call('HSET', base, unpack(fields))
call('ZREM', base .. '#r', unpack(free))
call('ZADD', base .. '#h', unpack(held))
return out
