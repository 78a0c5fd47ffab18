"""What runs inside Redis, and how keys are laid out there.

All keys begin with the prefix as a hash tag, so that a Cluster keeps them in one slot and a
script may touch any of them.

    {p}:kind:id          record: hash v value, n version, e epoch, m modified, x expires
                         stream: hash @b birth, @n last number, <n> time|id|value, c<n> claim,
                                 i<id> number of an id
    {p}:kind:id#r        stream: items nobody holds, by number
    {p}:kind:id#h        stream: held items, by the end of the claim
    {p}:kind:id#d        stream: removed lately, by the time
    {p}:kind:id#q:owner  stream: the last take of an owner, while it may be repeated
    {p}#index:kind       keys of a kind, by the time of the last write
    {p}#streams          streams, by the time they expire
    {p}#kinds            kinds that have an index
    {p}#bell:name        exists while somebody waits for the name; each write adds to it: w, or
                         for an item that is carried b birth, n number, v time|id|value,
                         s key|version|key|version of the records beside it

The sets of a stream hold a member "@" so that they never vanish, and keep their expiry.
Every key expires. A batch comes as flat arguments, each write with its number of fields before
it; time is Redis TIME.
"""

from __future__ import annotations

_HEAD = """
local call, A, P = redis.call, ARGV, KEYS[1]
local T = call('TIME')
local NOW = T[1] * 1000 + math.floor(T[2] / 1000)
local NOW_TEXT = string.format('%.0f', NOW)
local function at(name) return P .. ':' .. string.gsub(name, '/', ':') end
local function kept(key, wanted)
  local left = call('PTTL', key)
  if left < wanted - 60000 or left < wanted / 2 then call('PEXPIRE', key, wanted) end
  return left
end
local function ring(name)
  local bell = P .. '#bell:' .. name
  if call('EXISTS', bell) == 1 then call('XADD', bell, 'MAXLEN', '1', '*', 'w', '1') end
end
"""

WRITE = (
    _HEAD
    + """
local SCOPE, EPOCH, BIRTH, REMEMBERED, GETS = A[1], tonumber(A[2]), A[3], A[4], tonumber(A[5])
local DAY = 86400000
local OPS, COUNT, NEXT = {}, 0, 6 + GETS
while A[NEXT] do
  COUNT = COUNT + 1
  OPS[COUNT] = NEXT + 1
  NEXT = NEXT + A[NEXT] + 1
end
local OUT, RECORDS, STREAMS, ITEMS, FRESH = {0}, {}, {}, {}, {}
local function record(key)
  local known = RECORDS[key]
  if not known then
    known = call('HMGET', at(key), 'n', 'e')
    RECORDS[key] = known
  end
  return known
end
local function fits(key, code, version)
  if code == '0' then return true end
  local n = record(key)[1]
  if code == '1' then return not n end
  return n == version
end
local function answer()
  if GETS > 0 then
    local read = {NOW}
    for i = 1, GETS do read[i + 1] = call('HMGET', at(A[5 + i]), 'v', 'n', 'e', 'm', 'x') end
    OUT[COUNT + 2] = read
  end
  return OUT
end
local function stream(name, birth, number)
  local known = STREAMS[name]
  if not known then
    known = {at(name), birth, tonumber(number or 0)}
    STREAMS[name] = known
  end
  return known
end

for i = 1, COUNT do
  local o = OPS[i]
  if A[o] == '1' and record(A[o + 1])[1] == A[o + 7] then
    for k = 1, COUNT do
      local p = OPS[k]
      OUT[k + 1] = A[p] == '1' and A[p + 7] or ''
      if A[p] == '4' then
        local had = call('HMGET', at(A[p + 1]), '@b', 'i' .. A[p + 2])
        OUT[k + 1] = (had[1] or '') .. '.' .. (had[2] or '0')
      end
    end
    return answer()
  end
end

if SCOPE ~= '' then
  local own = false
  for i = 1, COUNT do
    local o = OPS[i]
    if A[o] == '1' then
      own = own or A[o + 1] == SCOPE
      local e = record(A[o + 1])[2]
      if e and tonumber(e) > EPOCH then return {3, e} end
    end
  end
  if not own then
    local e = record(SCOPE)[2]
    if not e then return {3, ''} end
    if tonumber(e) ~= EPOCH then return {3, e} end
  end
end

for i = 1, COUNT do
  local o = OPS[i]
  local code, name = A[o], A[o + 1]
  if code == '1' then
    if not fits(name, A[o + 3], A[o + 4]) then return {1, name} end
  elseif code == '3' then
    if not fits(name, A[o + 2], A[o + 3]) then return {1, name} end
  elseif code == '2' then
    if A[o + 2] ~= '0' and record(name)[1] and not fits(name, A[o + 2], A[o + 3]) then
      return {1, name}
    end
  elseif code == '4' then
    local base = at(name)
    local had = call('HMGET', base, '@b', '@n', 'i' .. A[o + 2])
    stream(name, had[1], had[2])
    ITEMS[i] = had[3]
    if had[1] and not had[3] then
      local items = call('ZCARD', base .. '#r') + call('ZCARD', base .. '#h') - 2
      if items >= tonumber(A[o + 5]) then return {4, tonumber(A[o + 5])} end
    end
  else
    local n, claim = A[o + 3], A[o + 4]
    local had = call('HMGET', at(name), '@b', n, 'c' .. n, 'x' .. n)
    local alive = had[1] == A[o + 2]
    if not alive then had[2] = false end
    ITEMS[i] = had
    if code == '5' or claim ~= '' then
      local holds = alive and had[3] and string.match(had[3], '^(.*)|')
      local ok = holds == claim and claim ~= ''
      if not ok and code == '6' and alive then ok = not had[2] and had[4] == claim end
      if not ok and code == '5' and tonumber(A[o + 5]) == 0 and alive then
        ok = call('ZSCORE', at(name) .. '#r', n) and true or false
      end
      if not ok then return {2, name} end
    end
  end
end

local function put(o, name)
  local key, ttl, epoch = at(name), tonumber(A[o + 5]), EPOCH
  local expires = ttl >= 0 and NOW + ttl or ''
  if SCOPE == '' then epoch = record(name)[2] or 0 end
  call('HSET', key, 'v', A[o + 2], 'n', A[o + 7], 'e', epoch, 'm', NOW_TEXT, 'x', expires)
  if ttl >= 0 then call('PEXPIRE', key, A[o + 5]) else call('PERSIST', key) end
  local kind = string.match(name, '^[^/]*')
  local index, wanted = P .. '#index:' .. kind, math.max(ttl, DAY)
  call('ZADD', index, NOW_TEXT, name)
  if (FRESH[kind] or 0) < wanted then
    FRESH[kind] = wanted
    if kept(index, wanted) < wanted - 60000 then
      call('SADD', P .. '#kinds', kind)
      kept(P .. '#kinds', wanted)
    end
  end
  if A[o + 6] == '0' then ring(name) end
end
local function beside(o)
  local told = {}
  for i = o + 7, o - 1 + A[o - 1] do
    told[#told + 1] = A[i]
    told[#told + 1] = record(A[i])[1] or ''
  end
  return table.concat(told, '|')
end
local function append(i, o, name)
  local s, id, wanted = STREAMS[name], A[o + 2], tonumber(A[o + 4])
  local base = s[1]
  if not s[2] then
    s[2], s[3] = BIRTH, 0
    call('HSET', base, '@b', BIRTH, '@n', 0)
    for _, set in ipairs({'#r', '#h', '#d'}) do
      call('DEL', base .. set)
      call('ZADD', base .. set, '+inf', '@')
    end
  end
  if (FRESH[base] or 0) < wanted then
    FRESH[base] = wanted
    local left = call('PTTL', base)
    if left < 0 or left < wanted - 60000 or left < wanted / 2 then
      call('PEXPIRE', base, wanted)
      for _, set in ipairs({'#r', '#h', '#d'}) do
        call('PEXPIRE', base .. set, wanted + 1000)
      end
      call('ZADD', P .. '#streams', NOW + wanted, name)
      kept(P .. '#streams', math.max(wanted, DAY))
    end
  end
  local n, body = ITEMS[i], nil
  if not n then
    n = s[3] + 1
    s[3] = n
    body = NOW_TEXT .. '|' .. id .. '|' .. A[o + 3]
    call('HSET', base, '@n', n, n, body, 'i' .. id, n)
    call('ZADD', base .. '#r', n, n)
    if n % 8 == 0 then
      local old = call('ZRANGEBYSCORE', base .. '#d', '-inf', NOW - REMEMBERED, 'LIMIT', 0, 32)
      for _, gone in ipairs(old) do
        local number, had = string.match(gone, '^(%d+)|(.*)$')
        call('HDEL', base, 'i' .. had, 'x' .. number)
        call('ZREM', base .. '#d', gone)
      end
    end
  end
  OUT[i + 1] = s[2] .. '.' .. n
  if A[o + 6] == '1' and body and #body <= 4096 then
    call('XADD', P .. '#bell:' .. name, 'NOMKSTREAM', 'MAXLEN', '16', '*',
      'b', s[2], 'n', n, 'v', body, 's', beside(o))
  else
    ring(name)
  end
end
local function remove(i, o, name)
  local base, n, claim, had = at(name), A[o + 3], A[o + 4], ITEMS[i]
  if not had[2] then return end
  call('HDEL', base, n, 'c' .. n)
  local first, second = '#r', '#h'
  if had[3] then first, second = second, first end
  if call('ZREM', base .. first, n) == 0 then call('ZREM', base .. second, n) end
  call('ZADD', base .. '#d', NOW_TEXT, n .. '|' .. string.match(had[2], '^%d+|([^|]*)|'))
  if claim ~= '' then call('HSET', base, 'x' .. n, claim) end
end
local function extend(i, o, name)
  local base, n, lease = at(name), A[o + 3], tonumber(A[o + 5])
  if lease > 0 then
    call('ZREM', base .. '#r', n)
    call('ZADD', base .. '#h', NOW + lease, n)
  else
    call('HSET', base, 'c' .. n, '|' .. string.match(ITEMS[i][3], '|(%d+)$'))
    call('ZREM', base .. '#h', n)
    call('ZADD', base .. '#r', n, n)
  end
  ring(name)
end

for i = 1, COUNT do
  local o = OPS[i]
  local code, name = A[o], A[o + 1]
  OUT[i + 1] = ''
  if code == '1' then
    put(o, name)
    OUT[i + 1] = A[o + 7]
  elseif code == '4' then append(i, o, name)
  elseif code == '6' then remove(i, o, name)
  elseif code == '5' then extend(i, o, name)
  elseif code == '2' then
    call('DEL', at(name))
    call('ZREM', P .. '#index:' .. string.match(name, '^[^/]*'), name)
    if A[o + 4] == '0' then ring(name) end
  end
end
return answer()
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
local base, owner, request = at(A[1]), A[2], A[3]
local lease, limit, remembered = tonumber(A[4]), tonumber(A[5]), A[6]
local birth, last = call('HGET', base, '@b'), base .. '#q:' .. owner
if not birth then return {NOW, ''} end
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
if known and string.sub(known, 1, #request + 1) == request .. '|' then
  for n, attempt in string.gmatch(string.sub(known, #request + 2), '(%d+):(%d+)') do
    local claim = owner .. ':' .. attempt .. ':' .. n .. '|' .. attempt
    local until_ms = call('ZSCORE', base .. '#h', n)
    local now = call('HMGET', base, 'c' .. n, n)
    if until_ms and now[1] == claim then give(n, now[2], attempt, until_ms) end
  end
  return out
end
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
  local holds, due, last_item = 0, -1, ''
  local base = at(name)
  if kind == 0 then
    local version = redis.call('HGET', base, 'n') or ''
    if version ~= known then holds = 1 end
  elseif redis.call('EXISTS', base) == 0 then
    holds = 0
  elseif kind == 1 then
    local after = tonumber(number)
    local had = redis.call('HMGET', base, '@b', '@n')
    if had[1] then last_item = had[1] .. '.' .. had[2] end
    if had[1] ~= known then after = 0 end
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
  out[#out + 1] = {holds, id, due, last_item}
end
return out
"""
)
