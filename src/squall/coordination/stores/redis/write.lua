-- One batch of writes, and then the reads of `write_and_get`.
--
-- ARGV: scope and epoch of the fence ('' for none), birth for new streams, how long removed ids are
-- remembered, number of keys to read, those keys, and then each write with its number of fields
-- before it. The first field is its kind:
--   1 Put     key value condition version ttl silent token
--   2 Delete  key condition version silent
--   3 Check   key condition version
--   4 Append  stream id value ttl limit carried keys-beside...
--   5 Extend  stream birth number claim lease
--   6 Remove  stream birth number claim
-- A condition is 0 for any, 1 for absent, 2 for the version that follows.
--
-- Answers {0, result per write, reads}, or a refusal: {1, key} version conflict, {2, stream} stale
-- claim, {3, epoch} stale epoch ('' if the scope is gone), {4, limit} stream full.
-- Nothing is written before all conditions have been checked.
local SCOPE, EPOCH, BIRTH, REMEMBERED, GETS = A[1], tonumber(A[2]), A[3], A[4], tonumber(A[5])
local DAY = 86400000
local OPS, COUNT, NEXT = {}, 0, 6 + GETS
while A[NEXT] do
  COUNT = COUNT + 1
  OPS[COUNT] = NEXT + 1
  NEXT = NEXT + A[NEXT] + 1
end
-- RECORDS, STREAMS and ITEMS cache what was read, so that all conditions see the state from before
-- the batch. FRESH remembers the longest expiry that was set, per kind and stream.
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

-- A record that has the token of our own Put as its version: this batch took effect before, and
-- only its reply was lost. It is answered again, and not checked: its conditions no longer hold.
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

-- The fence. A record never goes back to a lower epoch, and the scope must have exactly this one,
-- unless the batch writes the scope itself: that is an election or a renewal.
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

-- The conditions of all writes.
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
    -- A cursor of an earlier stream of this name, which expired, names no item of this one.
    local alive = had[1] == A[o + 2]
    if not alive then had[2] = false end
    ITEMS[i] = had
    if code == '5' or claim ~= '' then
      local holds = alive and had[3] and string.match(had[3], '^(.*)|')
      local ok = holds == claim and claim ~= ''
      -- A repeat of the removal by the same claim.
      if not ok and code == '6' and alive then ok = not had[2] and had[4] == claim end
      -- A repeat of giving back: it is free already.
      if not ok and code == '5' and tonumber(A[o + 5]) == 0 and alive then
        ok = call('ZSCORE', at(name) .. '#r', n) and true or false
      end
      if not ok then return {2, name} end
    end
  end
end

-- From here on everything is written.
local function put(o, name)
  local key, ttl, epoch = at(name), tonumber(A[o + 5]), EPOCH
  local expires = ttl >= 0 and NOW + ttl or ''
  -- A write without a fence leaves the epoch as it is.
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
-- The versions that the records beside a carried item had before this batch. They are read in the
-- same step as the append, so the receiver need not ask for them.
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
    -- Forgets removed ids, a few with every eighth append: no append pays for all of them.
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
  -- A larger item would make the bell a second copy of the stream: its reader is only woken.
  -- 16 entries are as many as `waits.py` keeps.
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
  -- An item with a claim is most likely held, but its claim may have run out and been swept to #r.
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
