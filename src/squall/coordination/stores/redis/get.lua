-- Records by their keys: {now, {value, version, epoch, modified, expires}, ...}.
local out = {NOW}
for i, key in ipairs(ARGV) do
  out[i + 1] = redis.call('HMGET', at(key), 'v', 'n', 'e', 'm', 'x')
end
return out
