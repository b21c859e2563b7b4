import com.google.protobuf.Int64Value;
import com.google.protobuf.StringValue;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.PulsarClientException.IncompatibleSchemaException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.SchemaDefinition;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/** Schemas: registered, checked against what is there, found again by version. */
final class SchemaScenarios {
    private SchemaScenarios() {
    }

    static void register(InteropSuite suite) {
        suite.add("schema-primitives", SchemaScenarios::primitives);
        suite.add("schema-avro-and-json-records", SchemaScenarios::records);
        suite.add("schema-protobuf", SchemaScenarios::protobuf);
        suite.add("schema-key-value", SchemaScenarios::keyValue);
        suite.add("schema-auto-consume", SchemaScenarios::autoConsume);
        suite.add("schema-auto-consume-before-there-is-one", SchemaScenarios::autoConsumeFirst);
        suite.add("schema-auto-produce", SchemaScenarios::autoProduce);
        suite.add("schema-versions-are-read-by-their-own", SchemaScenarios::versions);
        suite.add("schema-incompatible", SchemaScenarios::incompatible);
        suite.add("schema-of-another-type", SchemaScenarios::anotherType);
        suite.add("schema-per-message", SchemaScenarios::perMessage);
        suite.add("schema-bytes-beside-records", SchemaScenarios::bytes);
    }

    /** Three versions of one record: V2 adds a field with a default, Wrong changes a type. */
    public static final class V1 {
        public String name;
        public int age;
    }

    public static final class V2 {
        public String name;
        public int age;
        public String city;
    }

    public static final class Wrong {
        public String name;
        public String age;
    }

    private static <T> Schema<T> avro(Class<T> type) {
        return Schema.AVRO(SchemaDefinition.<T>builder().withPojo(type).withAlwaysAllowNull(true)
                .withSupportSchemaVersioning(true).build());
    }

    private static V1 v1(String name) {
        V1 value = new V1();
        value.name = name;
        value.age = 7;
        return value;
    }

    private static V2 v2(String name) {
        V2 value = new V2();
        value.name = name;
        value.age = 8;
        value.city = "c";
        return value;
    }

    private static <T> Message<T> roundTrip(Context c, String local, Schema<T> schema, T value) throws Exception {
        Consumer<T> consumer = c.client.newConsumer(schema).topic(c.topic(local)).subscriptionName("sub").subscribe();
        c.client.newProducer(schema).topic(c.topic(local)).create().send(value);
        return Context.take(consumer, 1).get(0);
    }

    private static String registered(Context c, String local) throws Exception {
        return c.http("GET", "/admin/v2/schemas/" + c.namespace + "/" + local + "/schema", "");
    }

    private static void primitives(Context c) throws Exception {
        Context.same("s", roundTrip(c, "string", Schema.STRING, "s").getValue());
        Context.same(5, roundTrip(c, "int32", Schema.INT32, 5).getValue());
        Context.same(6L, roundTrip(c, "int64", Schema.INT64, 6L).getValue());
        Context.same(true, roundTrip(c, "bool", Schema.BOOL, true).getValue());
        Context.same(1.5, roundTrip(c, "double", Schema.DOUBLE, 1.5).getValue());
        LocalDate day = LocalDate.of(2026, 1, 2);
        Context.same(day, roundTrip(c, "date", Schema.LOCAL_DATE, day).getValue());
        for (Map.Entry<String, String> type : Map.of("string", "STRING", "int32", "INT32", "int64", "INT64",
                "bool", "BOOLEAN", "double", "DOUBLE", "date", "LOCAL_DATE").entrySet()) {
            String found = registered(c, type.getKey());
            Context.check(found.contains("\"type\":\"" + type.getValue() + "\""), found);
        }
    }

    private static void records(Context c) throws Exception {
        for (SchemaType type : List.of(SchemaType.AVRO, SchemaType.JSON)) {
            String local = "records-" + type;
            Schema<V1> schema = type == SchemaType.AVRO ? Schema.AVRO(V1.class) : Schema.JSON(V1.class);
            V1 value = roundTrip(c, local, schema, v1("x")).getValue();
            Context.check(value.name.equals("x") && value.age == 7, "the record differs");
            String found = registered(c, local);
            Context.check(found.contains("\"type\":\"" + type + "\"") && found.contains("\"version\":0"), found);
        }
    }

    private static void protobuf(Context c) throws Exception {
        StringValue value = StringValue.of("p");
        Context.same(value, roundTrip(c, "proto", Schema.PROTOBUF(StringValue.class), value).getValue());
        Context.same(value, roundTrip(c, "native", Schema.PROTOBUF_NATIVE(StringValue.class), value).getValue());
        Context.check(registered(c, "proto").contains("\"type\":\"PROTOBUF\""), registered(c, "proto"));
        Context.check(registered(c, "native").contains("\"type\":\"PROTOBUF_NATIVE\""), registered(c, "native"));
        Context.refused(IncompatibleSchemaException.class, "", () -> c.client
                .newProducer(Schema.PROTOBUF_NATIVE(Int64Value.class)).topic(c.topic("native")).create());
    }

    private static void keyValue(Context c) throws Exception {
        for (KeyValueEncodingType encoding : KeyValueEncodingType.values()) {
            Schema<KeyValue<String, V1>> schema = Schema.KeyValue(Schema.STRING, Schema.AVRO(V1.class), encoding);
            String local = "kv-" + encoding;
            Message<KeyValue<String, V1>> message = roundTrip(c, local, schema, new KeyValue<>("k", v1("x")));
            Context.same("k", message.getValue().getKey());
            Context.same("x", message.getValue().getValue().name);
            Context.same(encoding == KeyValueEncodingType.SEPARATED, message.hasKey());
            Context.check(registered(c, local).contains("\"type\":\"KEY_VALUE\""), registered(c, local));
            Consumer<GenericRecord> generic = c.client.newConsumer(Schema.AUTO_CONSUME()).topic(c.topic(local))
                    .subscriptionName("generic").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .subscribe();
            Object object = Context.take(generic, 1).get(0).getValue().getNativeObject();
            Context.same("k", ((KeyValue<?, ?>) object).getKey());
        }
    }

    private static void autoConsume(Context c) throws Exception {
        Producer<V1> first = c.client.newProducer(avro(V1.class)).topic(c.topic()).create();
        Consumer<GenericRecord> consumer = c.client.newConsumer(Schema.AUTO_CONSUME()).topic(c.topic())
                .subscriptionName("sub").subscribe();
        first.send(v1("one"));
        c.client.newProducer(avro(V2.class)).topic(c.topic()).create().send(v2("two"));
        List<Message<GenericRecord>> messages = Context.take(consumer, 2);
        Context.same("one", messages.get(0).getValue().getField("name").toString());
        Context.same(2, messages.get(0).getValue().getFields().size());
        Context.same("c", messages.get(1).getValue().getField("city").toString());
        Context.same(3, messages.get(1).getValue().getFields().size());
    }

    private static void autoConsumeFirst(Context c) throws Exception {
        Consumer<GenericRecord> consumer = c.client.newConsumer(Schema.AUTO_CONSUME()).topic(c.topic())
                .subscriptionName("sub").subscribe();
        c.client.newProducer(Schema.JSON(V1.class)).topic(c.topic()).create().send(v1("one"));
        Context.same("one", Context.take(consumer, 1).get(0).getValue().getField("name"));
    }

    private static void autoProduce(Context c) throws Exception {
        Consumer<V1> consumer = c.client.newConsumer(Schema.AVRO(V1.class)).topic(c.topic()).subscriptionName("sub")
                .subscribe();
        Producer<byte[]> producer = c.client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(c.topic()).create();
        producer.send(Schema.AVRO(V1.class).encode(v1("raw")));
        Context.same("raw", Context.take(consumer, 1).get(0).getValue().name);
        Context.refused(Exception.class, "", () -> producer.send(new byte[] {(byte) 0xff}));
    }

    /** Each message is decoded by the version that it was written with, wherever it is read. */
    private static void versions(Context c) throws Exception {
        c.client.newProducer(avro(V1.class)).topic(c.topic()).create().send(v1("one"));
        c.client.newProducer(avro(V2.class)).topic(c.topic()).create().send(v2("two"));
        c.client.newProducer(avro(V1.class)).topic(c.topic()).create().send(v1("three"));
        Consumer<V2> consumer = c.client.newConsumer(avro(V2.class)).topic(c.topic()).subscriptionName("sub")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        List<Message<V2>> messages = Context.take(consumer, 3);
        Context.same(List.of("one", "two", "three"), messages.stream().map(m -> m.getValue().name).toList());
        Context.check(messages.get(0).getValue().city == null, "a city from nowhere");
        Context.same("c", messages.get(1).getValue().city);
        List<Byte> versions = messages.stream().map(m -> m.getSchemaVersion()[7]).toList();
        Context.same(List.of((byte) 0, (byte) 1, (byte) 0), versions);
        Context.same(8, messages.get(0).getSchemaVersion().length);
        String all = c.http("GET", "/admin/v2/schemas/" + c.namespace + "/topic/schemas", "");
        Context.check(all.contains("\"version\":1") && !all.contains("\"version\":2"), all);
        Context.same("one", Context.read(c.client.newReader(avro(V1.class)).topic(c.topic())
                .startMessageId(MessageId.earliest).create(), 1).get(0).getValue().name);
    }

    private static void incompatible(Context c) throws Exception {
        Producer<V1> producer = c.client.newProducer(Schema.AVRO(V1.class)).topic(c.topic()).create();
        Context.refused(IncompatibleSchemaException.class, "",
                () -> c.client.newProducer(Schema.AVRO(Wrong.class)).topic(c.topic()).create());
        Context.refused(IncompatibleSchemaException.class, "", () -> c.client.newConsumer(Schema.AVRO(Wrong.class))
                .topic(c.topic()).subscriptionName("sub").subscribe());
        producer.send(v1("still here"));
    }

    private static void anotherType(Context c) throws Exception {
        c.client.newProducer(Schema.AVRO(V1.class)).topic(c.topic()).create();
        Context.refused(PulsarClientException.class, "",
                () -> c.client.newProducer(Schema.STRING).topic(c.topic()).create());
        Context.refused(PulsarClientException.class, "",
                () -> c.client.newConsumer(Schema.INT64).topic(c.topic()).subscriptionName("sub").subscribe());
        Context.refused(PulsarClientException.class, "",
                () -> c.client.newProducer(Schema.JSON(V1.class)).topic(c.topic()).create());
    }

    private static void perMessage(Context c) throws Exception {
        Producer<byte[]> producer = c.client.newProducer().topic(c.topic()).enableMultiSchema(true).create();
        Consumer<GenericRecord> consumer = c.client.newConsumer(Schema.AUTO_CONSUME()).topic(c.topic())
                .subscriptionName("sub").subscribe();
        producer.newMessage(avro(V1.class)).value(v1("one")).send();
        producer.newMessage(avro(V2.class)).value(v2("two")).send();
        producer.newMessage(avro(V1.class)).value(v1("three")).send();
        List<Message<GenericRecord>> messages = Context.take(consumer, 3);
        Context.same(List.of(2, 3, 2), messages.stream().map(m -> m.getValue().getFields().size()).toList());
        Context.refused(IncompatibleSchemaException.class, "",
                () -> producer.newMessage(avro(Wrong.class)).value(new Wrong()).send());
    }

    private static void bytes(Context c) throws Exception {
        Consumer<byte[]> consumer = c.client.newConsumer().topic(c.topic()).subscriptionName("sub").subscribe();
        c.client.newProducer(Schema.JSON(V1.class)).topic(c.topic()).create().send(v1("x"));
        c.client.newProducer().topic(c.topic()).create().send("{\"name\": \"raw\"}".getBytes(StandardCharsets.UTF_8));
        List<Message<byte[]>> messages = Context.take(consumer, 2);
        Context.check(new String(messages.get(0).getData(), StandardCharsets.UTF_8).contains("\"x\""), "payload");
        Context.same("{\"name\": \"raw\"}", new String(messages.get(1).getData(), StandardCharsets.UTF_8));
    }
}
