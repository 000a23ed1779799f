// Requests of a shop, traced by dd-trace: argument 1 is their number. It also sends metrics to DogStatsD over UDP.
const tracer = require('dd-trace').init({ profiling: !!process.env.PROFILE });
for (let number = 0; number < Number(process.argv[2]); number++) {
  tracer.trace('web.request', { resource: 'GET /cart', type: 'web' }, root => {
    root.setTag('number', String(number));
    root.setTag('text', 'größe');
    tracer.trace('postgres.query', { resource: 'SELECT 1', type: 'sql' }, () => {});
    if (number === 7) root.setTag('error', new Error('the cart is locked'));
  });
}
const socket = require('node:dgram').createSocket('udp4');
for (let number = 0; number < 10; number++) socket.send('shop.requests:1|c|#service:shop', Number(process.env.STATSD_PORT), '127.0.0.1');
const end = Date.now() + (process.env.PROFILE ? 4000 : 0);
(function compute() {
  for (const until = Date.now() + 50; Date.now() < until;) Math.sqrt(until);
  if (Date.now() < end) setImmediate(compute);
  else setTimeout(() => process.exit(0), 3000);
})();
