-- Stands before every script. KEYS[1] is the prefix with its hash tag.
-- Time is Redis TIME, the one clock that all members share.
local call, A, P = redis.call, ARGV, KEYS[1]
local T = call('TIME')
local NOW = T[1] * 1000 + math.floor(T[2] / 1000)
-- Lua would print a number of 13 digits as 1.7e+12.
local NOW_TEXT = string.format('%.0f', NOW)
local function at(name) return P .. ':' .. string.gsub(name, '/', ':') end
-- Gives a key at least `wanted` ms to live. An expiry that is nearly as long stays as it is: a
-- heartbeat each second must not cost a PEXPIRE of the index each second. Returns what was left.
local function kept(key, wanted)
  local left = call('PTTL', key)
  if left < wanted - 60000 or left < wanted / 2 then call('PEXPIRE', key, wanted) end
  return left
end
-- Wakes those who wait for a name. Without a waiter there is no bell, and nothing is written.
local function ring(name)
  local bell = P .. '#bell:' .. name
  if call('EXISTS', bell) == 1 then call('XADD', bell, 'MAXLEN', '1', '*', 'w', '1') end
end
