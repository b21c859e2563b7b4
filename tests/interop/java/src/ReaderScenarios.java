import java.time.Clock;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TopicMessageId;

/** Readers, table views, seeking, and the last message ids. */
final class ReaderScenarios {
    private ReaderScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("reader-start-positions", ReaderScenarios::starts);
        suite.add("reader-knows-whether-there-is-more", ReaderScenarios::hasMore);
        suite.add("reader-inside-a-batch", ReaderScenarios::insideBatch);
        suite.add("reader-goes-back-in-time", ReaderScenarios::rollback);
        suite.add("reader-of-partitions-and-of-topics", ReaderScenarios::several);
        suite.add("reader-of-some-keys", ReaderScenarios::keyRange);
        suite.add("reader-seeks", ReaderScenarios::readerSeeks);
        suite.add("consumer-seeks-by-id-and-time", ReaderScenarios::consumerSeeks);
        suite.add("consumer-seeks-each-topic-by-its-own", ReaderScenarios::seekByFunction);
        suite.add("last-message-ids", ReaderScenarios::lastIds);
        suite.add("table-view", ReaderScenarios::tableView);
        suite.add("compacted-read-of-what-is-not-compacted", ReaderScenarios::readCompacted);
    }

    private static ReaderBuilder<String> reader(Context c) {
        return c.client.newReader(Schema.STRING).topic(c.topic());
    }

    private static void starts(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        List<MessageId> ids = Context.send(producer, "m", 10);
        Reader<String> earliest = reader(c).startMessageId(MessageId.earliest).create();
        Reader<String> latest = reader(c).startMessageId(MessageId.latest).create();
        Reader<String> last = reader(c).startMessageId(MessageId.latest).startMessageIdInclusive().create();
        Reader<String> after = reader(c).startMessageId(ids.get(4)).create();
        Reader<String> from = reader(c).startMessageId(MessageId.fromByteArray(ids.get(4).toByteArray()))
                .startMessageIdInclusive().create();
        // Only asking makes the client look for the last message.
        Context.check(last.hasMessageAvailable(), "the last message was not found");
        producer.send("new");
        List<String> all = Context.numbered("m", 10);
        all.add("new");
        Context.same(all, Context.values(Context.read(earliest, 11)));
        Context.same(all.subList(10, 11), Context.values(Context.read(latest, 1)));
        Context.same(all.subList(9, 11), Context.values(Context.read(last, 2)));
        Context.same(all.subList(5, 11), Context.values(Context.read(after, 6)));
        Context.same(all.subList(4, 11), Context.values(Context.read(from, 7)));
    }

    private static void hasMore(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        Reader<String> earliest = reader(c).startMessageId(MessageId.earliest).create();
        Reader<String> latest = reader(c).startMessageId(MessageId.latest).create();
        Context.check(!earliest.hasMessageAvailable() && !latest.hasMessageAvailable(), "something in nothing");
        Context.send(producer, "m", 2);
        Reader<String> late = reader(c).startMessageId(MessageId.latest).create();
        Context.check(!late.hasMessageAvailable(), "nothing came after the end");
        for (int i = 0; i < 2; i++) {
            Context.check(earliest.hasMessageAvailable() && latest.hasMessageAvailable(), "message " + i);
            Context.same("m" + i, Context.read(earliest, 1).get(0).getValue());
            Context.same("m" + i, Context.read(latest, 1).get(0).getValue());
        }
        Context.check(!earliest.hasMessageAvailable() && !latest.hasMessageAvailable(), "more than there is");
        c.unload(c.topic());
        Context.check(!earliest.hasMessageAvailable(), "more after an unload");
        producer.send("x");
        Context.check(earliest.hasMessageAvailable(), "nothing after an unload");
    }

    private static void insideBatch(Context c) throws Exception {
        Producer<String> producer = c.client.newProducer(Schema.STRING).topic(c.topic())
                .batchingMaxPublishDelay(Context.UNTIL_FLUSH_SECONDS, TimeUnit.SECONDS).create();
        for (int i = 0; i < 10; i++) {
            producer.sendAsync("m" + i);
        }
        producer.flush();
        List<Message<String>> all = Context.read(reader(c).startMessageId(MessageId.earliest).create(), 10);
        MessageId fifth = all.get(4).getMessageId();
        List<String> expected = Context.numbered("m", 10);
        Reader<String> after = reader(c).startMessageId(fifth).create();
        Context.same(expected.subList(5, 10), Context.values(Context.read(after, 5)));
        Context.check(!after.hasMessageAvailable(), "more than the batch");
        Reader<String> from = reader(c).startMessageId(fifth).startMessageIdInclusive().create();
        Context.same(expected.subList(4, 10), Context.values(Context.read(from, 6)));
        from.seek(all.get(7).getMessageId());
        Context.same(expected.subList(7, 10), Context.values(Context.read(from, 3)));
    }

    private static void rollback(Context c) throws Exception {
        PulsarClient earlier = c.connect(c.builder().clock(Clock.offset(Clock.systemUTC(), Duration.ofHours(-2))));
        Context.send(earlier.newProducer(Schema.STRING).topic(c.topic()).enableBatching(false).create(), "old", 3);
        Context.send(c.producer(c.topic()), "new", 3);
        Reader<String> reader = reader(c).startMessageFromRollbackDuration(1, TimeUnit.HOURS).create();
        Context.same(Context.numbered("new", 3), Context.values(Context.read(reader, 3)));
    }

    private static void several(Context c) throws Exception {
        String parts = c.partitioned("parts", 3);
        Context.send(c.producer(parts), "p", 9);
        Context.send(c.producer(c.topic()), "t", 3);
        Reader<String> partitions = c.client.newReader(Schema.STRING).topic(parts).startMessageId(MessageId.earliest)
                .create();
        Context.same(new TreeSet<>(Context.numbered("p", 9)),
                new TreeSet<>(Context.values(Context.read(partitions, 9))));
        Context.check(!partitions.hasMessageAvailable(), "more in the partitions");
        Reader<String> topics = c.client.newReader(Schema.STRING).topics(List.of(parts, c.topic()))
                .startMessageId(MessageId.earliest).create();
        Context.read(topics, 12);
        Context.check(!topics.hasMessageAvailable(), "more in the topics");
    }

    private static void keyRange(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        for (int i = 0; i < 100; i++) {
            producer.newMessage().key("k" + i).value("" + i).send();
        }
        List<Reader<String>> readers = new ArrayList<>();
        for (Range range : List.of(Range.of(0, 32767), Range.of(32768, 65535))) {
            readers.add(reader(c).startMessageId(MessageId.earliest).keyHashRange(range).create());
        }
        List<String> seen = new ArrayList<>();
        Set<Reader<String>> reading = new HashSet<>();
        // Once all have come, it listens on until neither is given more.
        Context.await("all keys", () -> {
            int before = seen.size();
            for (Reader<String> reader : readers) {
                for (Message<String> m = reader.readNext(Context.SILENCE_MILLIS, TimeUnit.MILLISECONDS); m != null;
                        m = reader.readNext(Context.SILENCE_MILLIS, TimeUnit.MILLISECONDS)) {
                    seen.add(m.getValue());
                    reading.add(reader);
                }
            }
            return seen.size() >= 100 && seen.size() == before;
        });
        Context.check(reading.size() == 2, "a range took all or nothing");
        Context.same(new TreeSet<>(Context.numbered("", 100)), new TreeSet<>(seen));
        Context.same(100, seen.size());
    }

    private static void readerSeeks(Context c) throws Exception {
        Producer<String> producer = c.producer(c.topic());
        List<MessageId> ids = Context.send(producer, "m", 10);
        Reader<String> reader = reader(c).startMessageId(MessageId.earliest).create();
        Context.read(reader, 10);
        // All is read before the next seek: what is on its way to the client then, it may still give.
        reader.seek(ids.get(6));
        Context.same("m7", Context.read(reader, 3).get(0).getValue());
        reader.seek(MessageId.earliest);
        Context.same("m0", Context.read(reader, 10).get(0).getValue());
        reader.seek(MessageId.latest);
        Context.check(!reader.hasMessageAvailable(), "more after the end");
        reader.seek(0);
        Context.check(reader.hasMessageAvailable(), "nothing from the beginning of time");
        Context.same("m0", Context.read(reader, 1).get(0).getValue());
    }

    private static void consumerSeeks(Context c) throws Exception {
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(c.topic()).subscriptionName("sub")
                .subscribe();
        Producer<String> producer = c.producer(c.topic());
        List<MessageId> ids = Context.send(producer, "old", 5);
        Thread.sleep(50);
        long between = System.currentTimeMillis();
        Thread.sleep(50);
        Context.send(producer, "new", 5);
        consumer.acknowledgeCumulative(Context.take(consumer, 10).get(9));
        c.awaitBacklog(c.topic(), "sub", 0); // an ack that the client keeps back may come behind the seek
        consumer.seek(ids.get(2));
        Context.same("old3", Context.take(consumer, 7).get(0).getValue());
        consumer.seek(between);
        Context.same(Context.numbered("new", 5), Context.values(Context.take(consumer, 5)));
        consumer.seek(MessageId.earliest);
        Context.same("old0", Context.take(consumer, 10).get(0).getValue());
        consumer.seek(MessageId.latest);
        Context.silent(consumer);
        producer.send("last");
        Context.same("last", Context.take(consumer, 1).get(0).getValue());
    }

    private static void seekByFunction(Context c) throws Exception {
        String parts = c.partitioned("parts", 2);
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(parts).subscriptionName("sub")
                .subscribe();
        List<MessageId> first = Context.send(c.producer(parts + "-partition-0"), "a", 4);
        Context.send(c.producer(parts + "-partition-1"), "b", 4);
        Context.take(consumer, 8);
        consumer.seek(topic -> topic.endsWith("0") ? first.get(2) : Long.valueOf(0));
        Context.same(new TreeSet<>(List.of("a3", "b0", "b1", "b2", "b3")),
                new TreeSet<>(Context.values(Context.take(consumer, 5))));
        Context.silent(consumer);
    }

    private static void lastIds(Context c) throws Exception {
        String parts = c.partitioned("parts", 2);
        Consumer<String> consumer = c.client.newConsumer(Schema.STRING).topic(parts).subscriptionName("sub")
                .subscribe();
        List<MessageId> sent = Context.send(c.producer(parts + "-partition-1"), "m", 3);
        for (TopicMessageId id : consumer.getLastMessageIds()) {
            if (id.getOwnerTopic().endsWith("1")) {
                Context.same(entry(sent.get(2)), entry(id));
            } else {
                Context.check(id.toString().contains(":-1"), "an empty partition has " + id);
            }
        }
    }

    private static String entry(MessageId id) {
        return id.toString().replaceFirst("^.*?(\\d+:\\d+).*$", "$1");
    }

    private static void tableView(Context c) throws Exception {
        String parts = c.partitioned("parts", 2);
        Producer<String> producer = c.producer(parts);
        for (int i = 0; i < 20; i++) {
            producer.newMessage().key("k" + i % 5).value("" + i).send();
        }
        Map<String, String> heard = new ConcurrentHashMap<>();
        TableView<String> view = c.client.newTableView(Schema.STRING).topic(parts)
                .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create();
        Context.same(5, view.size());
        Context.same("19", view.get("k4"));
        view.forEachAndListen(heard::put);
        producer.newMessage().key("k0").value("new").send();
        producer.newMessage().key("k1").value(null).send();
        view.refresh();
        Context.same("new", view.get("k0"));
        Context.check(!view.containsKey("k1"), "the tombstone was not seen");
        Context.await("the listener", () -> "new".equals(heard.get("k0")));
        view.close();
    }

    private static void readCompacted(Context c) throws Exception {
        Context.send(c.producer(c.topic()), "m", 3);
        Reader<String> reader = reader(c).startMessageId(MessageId.earliest).readCompacted(true).create();
        Context.same(Context.numbered("m", 3), Context.values(Context.read(reader, 3)));
    }
}
