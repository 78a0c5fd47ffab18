-- Removes keys of a kind from the index whose record has expired; Redis has deleted the record
-- itself. A key that was written since the caller listed it exists, and stays.
local removed = 0
for i = 2, #ARGV do
  if redis.call('EXISTS', at(ARGV[i])) == 0 then
    removed = removed + redis.call('ZREM', P .. '#index:' .. ARGV[1], ARGV[i])
  end
end
return removed
