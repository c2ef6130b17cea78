// Starts kinesalite on loopback; its own program listens on every interface. Arguments: its options as JSON.
// An iterator at a time after the last record never gets a response there; here it is the one behind the last record.
const path = require.resolve('kinesalite/actions/getShardIterator')
const db = require('kinesalite/db')
const getShardIterator = require(path)

require.cache[path].exports = function (store, data, done) {
  if (data.ShardIteratorType !== 'AT_TIMESTAMP') return getShardIterator(store, data, done)
  const shard = db.resolveShardId(data.ShardId).shardIx
  const range = { gt: db.shardIxToHex(shard), lt: db.shardIxToHex(shard + 1) }
  let found = false
  store.getStreamDb(data.StreamName).createReadStream(range)
    .on('data', item => { found = found || item.value.ApproximateArrivalTimestamp >= data.Timestamp })
    .on('end', () => {
      const { Timestamp, ...latest } = { ...data, ShardIteratorType: 'LATEST' }
      getShardIterator(store, found ? data : latest, done)
    })
}

const options = JSON.parse(process.argv[2])
require('kinesalite')(options).listen(options.port, '127.0.0.1')
