-- Looks at what is waited for, and creates the bells. Both happen in one step, so that no write can
-- come between the look and the wait.
-- ARGV: four fields per watch: 0 Changed key version '', 1 Appended stream birth number,
-- 2 Takeable stream '' '', 3 the bell of the waiting process itself.
-- Answers per watch {holds, last entry of the bell, ms until a claim runs out or -1, last cursor}.
local out = {}
for at_arg = 1, #ARGV, 4 do
  local kind, name = tonumber(ARGV[at_arg]), ARGV[at_arg + 1]
  local known, number = ARGV[at_arg + 2], ARGV[at_arg + 3]
  local bell = P .. '#bell:' .. name
  local last = redis.call('XREVRANGE', bell, '+', '-', 'COUNT', 1)[1]
  local id = last and last[1] or redis.call('XADD', bell, 'MAXLEN', 1, '*', 'w', 0)
  -- The waiter arms again every few seconds: a bell whose process died goes with its expiry.
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
