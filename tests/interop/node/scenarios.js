// Runs scenarios of PulsarFlex, a client in JavaScript alone, against a server, one per line of standard input.
//
// Argument: the service URL. A line "NAMESPACE SCENARIO" runs one; the answer is one JSON line: name, error.
'use strict';

const assert = require('node:assert');
const readline = require('node:readline');
const { Consumer, Producer, logLevel } = require('pulsar-flex');

const PATIENCE_MS = 30_000;
// This client looks for messages once in a second.
const SILENCE_MS = 1_500;

const address = process.argv[2].replace('pulsar://', '');
const common = { discoveryServers: [address], logLevel: logLevel.ERROR, logCreator: () => () => {} };

/** Fails if the promise takes too long. */
function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: not in ${PATIENCE_MS} ms`)), PATIENCE_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function numbered(prefix, count) {
  return Array.from({ length: count }, (_, number) => `${prefix}${String(number).padStart(3, '0')}`);
}

/** A consumer whose messages can be awaited. */
class Receiver {
  constructor(topic, subType, options = {}) {
    this.got = [];
    this.waiting = null;
    this.consumer = new Consumer({
      ...common,
      topic,
      subscription: 's',
      subType,
      consumerName: 'c',
      ...options,
    });
  }

  async start(onMessage = ({ ack }) => ack()) {
    await within(this.consumer.subscribe(), 'subscribe');
    await this.consumer.run({
      autoAck: false,
      onMessage: async (message) => {
        this.got.push({ ...message, text: Buffer.from(message.message).toString() });
        await onMessage(message, this.got.length);
        if (this.waiting) this.waiting();
      },
    });
    return this;
  }

  texts() {
    return this.got.map((message) => message.text);
  }

  /** Returns the texts once there are so many. */
  async take(count) {
    await awaitAll([this], count);
    return this.texts();
  }

  async silent(count) {
    await new Promise((resolve) => setTimeout(resolve, SILENCE_MS));
    assert.strictEqual(this.got.length, count, `unexpected: ${this.texts().slice(count)}`);
  }
}

/** Waits until receivers have so many messages together. */
function awaitAll(receivers, count) {
  const enough = () => receivers.reduce((sum, each) => sum + each.got.length, 0) >= count;
  const all = new Promise((resolve) => {
    const check = () => enough() && resolve();
    receivers.forEach((each) => {
      each.waiting = check;
    });
    check();
  });
  return within(all, `${count} messages`);
}

async function producerOf(topic) {
  const producer = new Producer({ ...common, topic, producerAccessMode: Producer.ACCESS_MODES.SHARED });
  await within(producer.create(), 'producer');
  return producer;
}

async function send(producer, texts) {
  for (const text of texts) {
    await within(producer.sendMessage({ payload: text, properties: {} }), `send ${text}`);
  }
}

async function produceAndConsume(topic) {
  const receiver = await new Receiver(topic, Consumer.SUB_TYPES.EXCLUSIVE).start();
  await send(await producerOf(topic), numbered('m', 20));
  assert.deepStrictEqual(await receiver.take(20), numbered('m', 20));
  await receiver.silent(20);
}

async function batchesAndProperties(topic) {
  const receiver = await new Receiver(topic, Consumer.SUB_TYPES.EXCLUSIVE).start();
  const producer = await producerOf(topic);
  const messages = numbered('m', 10).map((payload, number) => ({ payload, properties: { number: `${number}` } }));
  await within(producer.sendBatch({ messages }), 'sendBatch');
  assert.deepStrictEqual(await receiver.take(10), numbered('m', 10));
  assert.deepStrictEqual(
    receiver.got.map((message) => message.properties.number),
    messages.map((message) => message.properties.number),
  );
}

async function exclusive(topic) {
  await new Receiver(topic, Consumer.SUB_TYPES.EXCLUSIVE).start();
  await assert.rejects(within(new Receiver(topic, Consumer.SUB_TYPES.EXCLUSIVE).consumer.subscribe(), 'second'));
}

async function cumulativeAck(topic) {
  const receiver = await new Receiver(topic, Consumer.SUB_TYPES.EXCLUSIVE).start(async ({ ack }, count) => {
    if (count === 6) await ack({ type: Consumer.ACK_TYPES.CUMULATIVE });
  });
  await send(await producerOf(topic), numbered('m', 6));
  assert.deepStrictEqual(await receiver.take(6), numbered('m', 6));
  await receiver.silent(6);
  await within(receiver.consumer.unsubscribe(), 'unsubscribe');
}

async function negativeAcks(topic) {
  const receiver = await new Receiver(topic, Consumer.SUB_TYPES.SHARED).start(async ({ ack }, count) =>
    ack({ type: count === 1 ? Consumer.ACK_TYPES.NEGATIVE : Consumer.ACK_TYPES.INDIVIDUAL }),
  );
  await send(await producerOf(topic), numbered('m', 3));
  const texts = await receiver.take(4);
  assert.deepStrictEqual([...texts].sort(), ['m000', 'm000', 'm001', 'm002']);
  assert.strictEqual(receiver.got[texts.lastIndexOf('m000')].redeliveryCount, 1);
}

async function shared(topic) {
  const receivers = [];
  for (const consumerName of ['a', 'b']) {
    const receiver = new Receiver(topic, Consumer.SUB_TYPES.SHARED, { consumerName, receiveQueueSize: 10 });
    receivers.push(await receiver.start());
  }
  await send(await producerOf(topic), numbered('m', 40));
  await awaitAll(receivers, 40);
  assert.ok(receivers.every((receiver) => receiver.got.length > 0));
  assert.deepStrictEqual(receivers.flatMap((receiver) => receiver.texts()).sort(), numbered('m', 40));
}

async function failover(topic) {
  const receivers = [];
  for (const consumerName of ['a', 'b']) {
    receivers.push(await new Receiver(topic, Consumer.SUB_TYPES.FAILOVER, { consumerName }).start());
  }
  await send(await producerOf(topic), numbered('m', 10));
  await awaitAll(receivers, 10);
  const active = receivers.find((receiver) => receiver.got.length > 0);
  assert.deepStrictEqual(active.texts(), numbered('m', 10));
}

async function missingNamespace() {
  await assert.rejects(producerOf('persistent://public/no-such/t'));
}

const scenarios = {
  'produce-and-consume': produceAndConsume,
  'batches-and-properties': batchesAndProperties,
  'exclusive': exclusive,
  'cumulative-ack': cumulativeAck,
  'negative-acks': negativeAcks,
  'shared': shared,
  'failover': failover,
  'missing-namespace': missingNamespace,
};

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [namespace, name] = line.split(' ');
    let error = '';
    try {
      await scenarios[name](`persistent://${namespace}/t`);
    } catch (failure) {
      error = String(failure.stack || failure);
    }
    console.log(JSON.stringify({ name, error }));
  }
  // Connections of scenarios are open still, and would keep the process alive.
  process.exit(0);
}

main();
