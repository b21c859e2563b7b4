//! Scenarios of producers, readers and messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use futures::future::try_join_all;
use futures::TryStreamExt;
use pulsar::compression::{Compression, CompressionLz4, CompressionSnappy, CompressionZlib, CompressionZstd};
use pulsar::consumer::{ConsumerOptions, InitialPosition};
use pulsar::message::proto::schema::Type;
use pulsar::message::proto::{MessageIdData, Schema};
use pulsar::producer::Message;
use pulsar::reader::Reader;
use pulsar::{ProducerOptions, SubType, TokioExecutor};
use tokio::time::timeout;

use crate::rig::{check, expect, expect_sorted, numbered, receive, same, send, silent, take, text, Outcome, Rig, PATIENCE};

pub async fn produce_and_consume(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Exclusive).await?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 20).await?;
    expect(&mut consumer, numbered("m", 20)).await?;
    silent(&mut consumer).await
}

/// 30 messages in batches of 10 are three entries, and come in order.
pub async fn batches(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Exclusive).await?;
    let options = ProducerOptions { batch_size: Some(10), ..Default::default() };
    let mut producer = rig.client.producer().with_topic(rig.topic("t")).with_options(options).build().await?;
    let mut receipts = Vec::new();
    for body in numbered("m", 30) {
        receipts.push(producer.send_non_blocking(body).await?);
    }
    let entries: BTreeSet<(u64, u64)> = timeout(PATIENCE, try_join_all(receipts))
        .await??
        .into_iter()
        .filter_map(|receipt| receipt.message_id.map(|id| (id.ledger_id, id.entry_id)))
        .collect();
    same(3, entries.len())?;
    expect(&mut consumer, numbered("m", 30)).await
}

pub async fn every_compression(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Exclusive).await?;
    let body = "compressible ".repeat(2_000);
    for compression in [
        Compression::None,
        Compression::Lz4(CompressionLz4::default()),
        Compression::Zlib(CompressionZlib::default()),
        Compression::Zstd(CompressionZstd::default()),
        Compression::Snappy(CompressionSnappy::default()),
    ] {
        let name = format!("{compression:?}");
        let options = ProducerOptions { compression: Some(compression), ..Default::default() };
        let mut producer = rig.client.producer().with_topic(rig.topic("t")).with_options(options).build().await?;
        timeout(PATIENCE, producer.send_non_blocking(body.clone()).await?).await??;
        check(take(&mut consumer, 1).await? == [body.clone()], || format!("{name}: another body came"))?;
    }
    Ok(())
}

/// Sends to each of four partitions, and receives from all.
pub async fn partitions(rig: &Rig) -> Outcome {
    rig.create_partitions("t", 4).await?;
    let mut consumer = rig.subscribe("t", SubType::Shared).await?;
    let mut producer = rig.producer("t").await?;
    same(Some(4), producer.partitions().map(|names| names.len()))?;
    send(&mut producer, "m", 40).await?;
    let mut used = BTreeMap::new();
    let mut found = Vec::new();
    for _ in 0..40 {
        let message = receive(&mut consumer).await?;
        *used.entry(message.topic.clone()).or_insert(0) += 1;
        found.push(text(&message)?);
        consumer.ack(&message).await?;
    }
    found.sort();
    same(numbered("m", 40), found)?;
    same(4, used.len())
}

/// This client attaches a new consumer after a seek, beside the old one: an exclusive subscription has no room for it.
pub async fn seek(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Shared).await?;
    let mut producer = rig.producer("t").await?;
    let mut ids: Vec<MessageIdData> = Vec::new();
    for body in numbered("m", 5) {
        let receipt = timeout(PATIENCE, producer.send_non_blocking(body).await?).await??;
        ids.push(receipt.message_id.ok_or("a receipt without an id")?);
    }
    expect_sorted(&mut consumer, numbered("m", 5)).await?;
    consumer.seek(None, Some(ids[3].clone()), None, rig.client.clone()).await?;
    expect_sorted(&mut consumer, numbered("m", 5)[3..].to_vec()).await?;
    consumer.seek(None, None, Some(1), rig.client.clone()).await?;
    expect_sorted(&mut consumer, numbered("m", 5)).await?;
    silent(&mut consumer).await
}

pub async fn reader(rig: &Rig) -> Outcome {
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 5).await?;
    let options = ConsumerOptions::default().with_initial_position(InitialPosition::Earliest);
    let mut reader: Reader<String, TokioExecutor> =
        rig.client.reader().with_topic(rig.topic("t")).with_options(options.durable(false)).into_reader().await?;
    let mut found = Vec::new();
    for _ in 0..5 {
        let message = timeout(PATIENCE, reader.try_next()).await??.ok_or("the reader ended")?;
        found.push(text(&message)?);
    }
    same(numbered("m", 5), found)
}

/// A producer with a schema, whose version its messages have; another schema is refused.
pub async fn schema(rig: &Rig) -> Outcome {
    let with_schema = |kind: &str| ProducerOptions {
        schema: Some(Schema {
            r#type: Type::Avro as i32,
            schema_data: format!(
                r#"{{"type": "record", "name": "Order", "fields": [{{"name": "id", "type": "{kind}"}}]}}"#
            )
            .into_bytes(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut consumer = rig.subscribe("t", SubType::Exclusive).await?;
    let builder = rig.client.producer().with_topic(rig.topic("t"));
    let mut producer = builder.with_options(with_schema("int")).build().await?;
    // Avro's encoding of the record {id: 7}.
    let record = Message { payload: vec![14], ..Default::default() };
    timeout(PATIENCE, producer.send_non_blocking(record).await?).await??;
    let message = receive(&mut consumer).await?;
    same(vec![14], message.payload.data.clone())?;
    let found = consumer.get_schema(&rig.topic("t"), message.metadata().schema_version.clone()).await?;
    check(found.is_some(), || "the topic has no schema".into())?;
    let builder = rig.client.producer().with_topic(rig.topic("t"));
    let refused = builder.with_options(with_schema("string")).build().await;
    check(refused.is_err(), || "an incompatible schema was accepted".into())
}

pub async fn delayed(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Shared).await?;
    let mut producer = rig.producer("t").await?;
    let due = SystemTime::now() + Duration::from_millis(1_500);
    let later = producer.create_message().with_content("later".to_string()).deliver_at(due)?;
    timeout(PATIENCE, later.send_non_blocking().await?).await??;
    timeout(PATIENCE, producer.send_non_blocking("now".to_string()).await?).await??;
    expect(&mut consumer, vec!["now".into(), "later".into()]).await?;
    // The server rounds by a tick of a second at most; never early by more.
    let early = due.duration_since(SystemTime::now()).unwrap_or_default();
    check(early <= Duration::from_secs(1), || format!("delivered {early:?} early"))
}

pub async fn missing_namespace(rig: &Rig) -> Outcome {
    let made = rig.client.producer().with_topic("persistent://public/no-such/t").build().await;
    check(made.is_err(), || "a producer was attached in a namespace that is not there".into())?;
    let mut consumer = rig.subscribe("t", SubType::Shared).await?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 1).await?;
    expect_sorted(&mut consumer, numbered("m", 1)).await
}
