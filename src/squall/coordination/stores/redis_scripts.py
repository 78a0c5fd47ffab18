"""What runs inside Redis, and how keys are laid out there.

All keys begin with the prefix as a hash tag, so that a Cluster keeps them in one slot and a
script may touch any of them.

    {p}:kind:id          record: hash v value, n version, e epoch, m modified, x expires
                         stream: hash @b birth, @n last number, <n> time|id|value, c<n> claim,
                                 i<id> number of an id, q<owner> last take
    {p}:kind:id#r        stream: items nobody holds, by number
    {p}:kind:id#h        stream: held items, by the end of the claim
    {p}:kind:id#d        stream: removed lately, by the time
    {p}#index:kind       keys of a kind, by the time of the last write
    {p}#streams          streams, by the time they expire
    {p}#kinds            kinds that have an index
    {p}#bell:name        exists while somebody waits for the name; each write adds to it

The sets of a stream hold a member "@" so that they never vanish, and keep their expiry.
Every key expires. A batch comes as flat arguments, each write with its number of fields before
it; time is Redis TIME.
"""

from __future__ import annotations

_HEAD = """
local P = KEYS[1]
local T = redis.call('TIME')
local NOW = T[1] * 1000 + math.floor(T[2] / 1000)
local function at(name) return P .. ':' .. string.gsub(name, '/', ':') end
local function kept(key, wanted)
  local left = redis.call('PTTL', key)
  if left < wanted - 60000 or left < wanted / 2 then redis.call('PEXPIRE', key, wanted) end
  return left
end
local function ring(name)
  local bell = P .. '#bell:' .. name
  if redis.call('EXISTS', bell) == 1 then
    redis.call('XADD', bell, 'MAXLEN', 1, '*', 'w', 1)
  end
end
"""

WRITE = (
    _HEAD
    + """
local DAY = 86400000
local SCOPE, EPOCH, BIRTH, REMEMBERED = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local NUMBERS = {{1, 4, 6, 7}, {1, 3, 5}, {1, 3}, {1, 5, 6, 7}, {1, 6}, {1}}
local GETS = tonumber(ARGV[5])
local OPS, NEXT = {}, 6 + GETS
while ARGV[NEXT] do
  local op = {}
  for i = 1, tonumber(ARGV[NEXT]) do op[i] = ARGV[NEXT + i] end
  for _, i in ipairs(NUMBERS[tonumber(op[1])]) do op[i] = tonumber(op[i]) end
  OPS[#OPS + 1] = op
  NEXT = NEXT + #op + 1
end
local found = {}
local function record(key)
  if not found[key] then found[key] = redis.call('HMGET', at(key), 'n', 'e') end
  return found[key]
end
local function fits(key, code, version)
  local n = record(key)[1]
  if code == 0 then return true end
  if code == 1 then return not n end
  return n == version
end
local function stream_of(name)
  return redis.call('HMGET', at(name), '@b', '@n')
end
local function result(op)
  if op[1] == 1 then return op[8] end
  if op[1] == 4 then
    local base = at(op[2])
    return redis.call('HGET', base, '@b') .. '.' .. redis.call('HGET', base, 'i' .. op[3])
  end
  return ''
end
local function results()
  local out = {0}
  for i, op in ipairs(OPS) do out[i + 1] = result(op) end
  if GETS > 0 then
    local read = {NOW}
    for i = 1, GETS do
      read[i + 1] = redis.call('HMGET', at(ARGV[5 + i]), 'v', 'n', 'e', 'm', 'x')
    end
    out[#out + 1] = read
  end
  return out
end

for _, op in ipairs(OPS) do
  if op[1] == 1 and record(op[2])[1] == op[8] then return results() end
end

if SCOPE ~= '' then
  local own = false
  for _, op in ipairs(OPS) do
    if op[1] == 1 then
      own = own or op[2] == SCOPE
      local e = record(op[2])[2]
      if e and tonumber(e) > EPOCH then return {3, e} end
    end
  end
  if not own then
    local e = record(SCOPE)[2]
    if not e then return {3, ''} end
    if tonumber(e) ~= EPOCH then return {3, e} end
  end
end

for _, op in ipairs(OPS) do
  local code, name = op[1], op[2]
  if code == 1 then
    if not fits(name, op[4], op[5]) then return {1, name} end
  elseif code == 3 then
    if not fits(name, op[3], op[4]) then return {1, name} end
  elseif code == 2 then
    if record(name)[1] and not fits(name, op[3], op[4]) then return {1, name} end
  elseif code == 4 then
    local base = at(name)
    if redis.call('HEXISTS', base, 'i' .. op[3]) == 0 then
      local items = redis.call('ZCARD', base .. '#r') + redis.call('ZCARD', base .. '#h') - 2
      if items >= op[6] then return {4, op[6]} end
    end
  elseif code == 5 or op[5] ~= '' then
    local base = at(name)
    local now_birth = redis.call('HGET', base, '@b')
    local have = now_birth == op[3] and redis.call('HGET', base, 'c' .. op[4])
    local claim = have and string.match(have, '^(.*)|') or nil
    local ok = claim == op[5] and claim ~= ''
    if not ok and code == 6 and now_birth == op[3] then
      ok = redis.call('HEXISTS', base, op[4]) == 0
        and redis.call('HGET', base, 'x' .. op[4]) == op[5]
    end
    if not ok and code == 5 and op[6] == 0 and now_birth == op[3] then
      ok = redis.call('ZSCORE', base .. '#r', op[4]) and true or false
    end
    if not ok then return {2, name} end
  end
end

local function put(op)
  local key = at(op[2])
  local epoch = EPOCH
  if SCOPE == '' then epoch = record(op[2])[2] or 0 end
  local ttl = op[6]
  local expires = ''
  if ttl >= 0 then expires = NOW + ttl end
  redis.call('HSET', key, 'v', op[3], 'n', op[8], 'e', epoch, 'm', NOW, 'x', expires)
  if ttl >= 0 then redis.call('PEXPIRE', key, ttl) else redis.call('PERSIST', key) end
  local kind = string.match(op[2], '^[^/]*')
  local index = P .. '#index:' .. kind
  redis.call('ZADD', index, NOW, op[2])
  local wanted = math.max(ttl, DAY)
  if kept(index, wanted) < wanted - 60000 then
    redis.call('SADD', P .. '#kinds', kind)
    kept(P .. '#kinds', wanted)
  end
end
local function delete(op)
  redis.call('DEL', at(op[2]))
  redis.call('ZREM', P .. '#index:' .. string.match(op[2], '^[^/]*'), op[2])
end
local function append(op)
  local base = at(op[2])
  if redis.call('EXISTS', base) == 0 then
    redis.call('HSET', base, '@b', BIRTH, '@n', 0)
    for _, set in ipairs({'#r', '#h', '#d'}) do
      redis.call('DEL', base .. set)
      redis.call('ZADD', base .. set, '+inf', '@')
    end
  end
  local wanted = op[5]
  local left = redis.call('PTTL', base)
  if left < 0 or left < wanted - 60000 or left < wanted / 2 then
    redis.call('PEXPIRE', base, wanted)
    for _, set in ipairs({'#r', '#h', '#d'}) do
      redis.call('PEXPIRE', base .. set, wanted + 1000)
    end
    redis.call('ZADD', P .. '#streams', NOW + wanted, op[2])
    kept(P .. '#streams', math.max(wanted, DAY))
  end
  if redis.call('HEXISTS', base, 'i' .. op[3]) == 1 then return end
  local n = redis.call('HINCRBY', base, '@n', 1)
  redis.call('HSET', base, n, NOW .. '|' .. op[3] .. '|' .. op[4], 'i' .. op[3], n)
  redis.call('ZADD', base .. '#r', n, n)
  local old = redis.call('ZRANGEBYSCORE', base .. '#d', '-inf', NOW - REMEMBERED, 'LIMIT', 0, 4)
  for _, gone in ipairs(old) do
    local number, id = string.match(gone, '^(%d+)|(.*)$')
    redis.call('HDEL', base, 'i' .. id, 'x' .. number)
    redis.call('ZREM', base .. '#d', gone)
  end
end
local function remove(op)
  local base, n = at(op[2]), op[4]
  local item = redis.call('HGET', base, n)
  if not item or redis.call('HGET', base, '@b') ~= op[3] then return end
  redis.call('HDEL', base, n, 'c' .. n)
  redis.call('ZREM', base .. '#r', n)
  redis.call('ZREM', base .. '#h', n)
  redis.call('ZADD', base .. '#d', NOW, n .. '|' .. string.match(item, '^%d+|([^|]*)|'))
  if op[5] ~= '' then redis.call('HSET', base, 'x' .. n, op[5]) end
end
local function extend(op)
  local base, n = at(op[2]), op[4]
  if op[6] > 0 then
    redis.call('ZREM', base .. '#r', n)
    redis.call('ZADD', base .. '#h', NOW + op[6], n)
  else
    local attempt = string.match(redis.call('HGET', base, 'c' .. n), '|(%d+)$')
    redis.call('HSET', base, 'c' .. n, '|' .. attempt)
    redis.call('ZREM', base .. '#h', n)
    redis.call('ZADD', base .. '#r', n, n)
  end
end

for _, op in ipairs(OPS) do
  local code = op[1]
  if code == 1 then
    put(op)
    if op[7] == 0 then ring(op[2]) end
  elseif code == 2 then
    delete(op)
    if op[5] == 0 then ring(op[2]) end
  elseif code == 4 then
    append(op)
    if op[7] == 0 then ring(op[2]) end
  elseif code == 5 then
    extend(op)
    ring(op[2])
  elseif code == 6 then
    remove(op)
  end
end
return results()
"""
)

GET = (
    _HEAD
    + """
local out = {NOW}
for i, key in ipairs(ARGV) do
  out[i + 1] = redis.call('HMGET', at(key), 'v', 'n', 'e', 'm', 'x')
end
return out
"""
)

LIST = (
    _HEAD
    + """
local index, idle, after, key, limit = P .. '#index:' .. ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local skip, out = 0, {NOW}
if key ~= '' then
  local same = redis.call('ZRANGEBYSCORE', index, after, after)
  for _, other in ipairs(same) do if other <= key then skip = skip + 1 end end
end
local got = redis.call(
  'ZRANGEBYSCORE', index, after, NOW - idle, 'WITHSCORES', 'LIMIT', skip, limit)
for _, part in ipairs(got) do out[#out + 1] = part end
return out
"""
)

SWEEP = (
    _HEAD
    + """
local removed = 0
for i = 2, #ARGV do
  if redis.call('EXISTS', at(ARGV[i])) == 0 then
    removed = removed + redis.call('ZREM', P .. '#index:' .. ARGV[1], ARGV[i])
  end
end
return removed
"""
)

COUNT = (
    _HEAD
    + """
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
"""
)

READ = (
    _HEAD
    + """
local base, birth, after, limit = at(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now_birth = redis.call('HGET', base, '@b')
if not now_birth then return {NOW, ''} end
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
"""
)

TAKE = (
    _HEAD
    + """
local base, owner, request = at(ARGV[1]), ARGV[2], ARGV[3]
local lease, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local birth = redis.call('HGET', base, '@b')
if not birth then return {NOW, ''} end
local out = {NOW, birth}
local function give(n, attempt, until_ms)
  out[#out + 1] = n
  out[#out + 1] = redis.call('HGET', base, n)
  out[#out + 1] = attempt
  out[#out + 1] = until_ms
end
local known = request ~= '' and redis.call('HGET', base, 'q' .. owner)
if known and string.sub(known, 1, #request + 1) == request .. '|' then
  for n, attempt in string.gmatch(string.sub(known, #request + 2), '(%d+):(%d+)') do
    local claim = owner .. ':' .. attempt .. ':' .. n .. '|' .. attempt
    local until_ms = redis.call('ZSCORE', base .. '#h', n)
    if until_ms and redis.call('HGET', base, 'c' .. n) == claim then give(n, attempt, until_ms) end
  end
  return out
end
for _, n in ipairs(redis.call('ZRANGEBYSCORE', base .. '#h', '-inf', NOW, 'LIMIT', 0, limit)) do
  redis.call('ZREM', base .. '#h', n)
  redis.call('ZADD', base .. '#r', n, n)
end
local taken = {}
for _, n in ipairs(redis.call('ZRANGEBYSCORE', base .. '#r', '-inf', '(inf', 'LIMIT', 0, limit)) do
  local before = redis.call('HGET', base, 'c' .. n)
  local attempt = (before and tonumber(string.match(before, '|(%d+)$')) or 0) + 1
  redis.call('HSET', base, 'c' .. n, owner .. ':' .. attempt .. ':' .. n .. '|' .. attempt)
  redis.call('ZREM', base .. '#r', n)
  redis.call('ZADD', base .. '#h', NOW + lease, n)
  taken[#taken + 1] = n .. ':' .. attempt
  give(n, attempt, NOW + lease)
end
if request ~= '' and #taken > 0 then
  redis.call('HSET', base, 'q' .. owner, request .. '|' .. table.concat(taken, ','))
end
return out
"""
)

DEPTH = (
    _HEAD
    + """
local base = at(ARGV[1])
if redis.call('EXISTS', base) == 0 then return {0, 0, 0} end
local ready = redis.call('ZCARD', base .. '#r') - 1
local kept_by = redis.call('ZCARD', base .. '#h') - 1
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
"""
)

ARM = (
    _HEAD
    + """
local out = {}
for at_arg = 1, #ARGV, 4 do
  local kind, name = tonumber(ARGV[at_arg]), ARGV[at_arg + 1]
  local known, number = ARGV[at_arg + 2], ARGV[at_arg + 3]
  local bell = P .. '#bell:' .. name
  local last = redis.call('XREVRANGE', bell, '+', '-', 'COUNT', 1)[1]
  local id = last and last[1] or redis.call('XADD', bell, 'MAXLEN', 1, '*', 'w', 0)
  redis.call('PEXPIRE', bell, 60000)
  local holds, due = 0, -1
  local base = at(name)
  if kind == 0 then
    local version = redis.call('HGET', base, 'n') or ''
    if version ~= known then holds = 1 end
  elseif kind == 1 then
    local after = tonumber(number)
    if redis.call('HGET', base, '@b') ~= known then after = 0 end
    if redis.call('ZCOUNT', base .. '#r', '(' .. after, '(inf') > 0 then holds = 1 end
    if holds == 0 and redis.call('ZCARD', base .. '#h') > 1 then
      for _, n in ipairs(redis.call('ZRANGE', base .. '#h', 0, -1)) do
        if n ~= '@' and tonumber(n) > after then holds = 1 end
      end
    end
  elseif kind == 2 then
    if redis.call('ZCARD', base .. '#r') > 1 then holds = 1 end
    local next = redis.call('ZRANGE', base .. '#h', 0, 0, 'WITHSCORES')
    if next[1] and next[1] ~= '@' then due = math.max(0, tonumber(next[2]) - NOW) end
    if due == 0 then holds = 1 end
  end
  out[#out + 1] = {holds, id, due}
end
return out
"""
)
