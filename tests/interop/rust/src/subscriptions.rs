//! Scenarios of subscription types, redelivery, dead letters and patterns.

use std::collections::BTreeMap;
use std::time::Duration;

use pulsar::consumer::DeadLetterPolicy;
use pulsar::SubType;
use regex::Regex;
use tokio::time::timeout;

use crate::rig::{
    check, expect, expect_sorted, numbered, receive, same, send, share, silent, take, text, Outcome, Rig, PATIENCE,
};

pub async fn exclusive(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Exclusive).await?;
    // This client retries for minutes, or is refused: it never gets a consumer.
    let second = timeout(Duration::from_secs(1), rig.subscribe("t", SubType::Exclusive)).await;
    check(!matches!(second, Ok(Ok(_))), || "a second exclusive consumer was attached".into())?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 5).await?;
    expect(&mut consumer, numbered("m", 5)).await?;
    Ok(consumer.unsubscribe().await?)
}

/// One consumer gets all messages; when it goes, the other gets all.
pub async fn failover(rig: &Rig) -> Outcome {
    let builder = rig.subscription(SubType::Failover).with_topic(rig.topic("t"));
    let mut first = builder.clone().with_consumer_name("a").build().await?;
    let mut second = builder.with_consumer_name("b").build().await?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 10).await?;
    let parts = share(&mut first, &mut second, 10).await?;
    let (active, mut standby) = if parts[1].is_empty() { (first, second) } else { (second, first) };
    same(10, parts[0].len().max(parts[1].len()))?;
    // `close` would leave a task that attaches the consumer again.
    drop(active);
    send(&mut producer, "n", 5).await?;
    expect(&mut standby, numbered("n", 5)).await
}

pub async fn shared(rig: &Rig) -> Outcome {
    let builder = rig.subscription(SubType::Shared).with_topic(rig.topic("t")).with_batch_size(5);
    let mut first = builder.clone().build().await?;
    let mut second = builder.build().await?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 40).await?;
    let parts = share(&mut first, &mut second, 40).await?;
    check(parts.iter().all(|part| !part.is_empty()), || "a consumer got nothing".into())?;
    let mut found = parts.iter().flatten().map(text).collect::<Outcome<Vec<_>>>()?;
    found.sort();
    same(numbered("m", 40), found)
}

/// Each key goes to one consumer, in order.
pub async fn key_shared(rig: &Rig) -> Outcome {
    let mut first = rig.subscribe("t", SubType::KeyShared).await?;
    let mut second = rig.subscribe("t", SubType::KeyShared).await?;
    let mut producer = rig.producer("t").await?;
    for (i, body) in numbered("m", 60).into_iter().enumerate() {
        let message = producer.create_message().with_key(format!("key-{}", i % 12)).with_content(body);
        timeout(PATIENCE, message.send_non_blocking().await?).await??;
    }
    let parts = share(&mut first, &mut second, 60).await?;
    let mut seen: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for (who, part) in parts.iter().enumerate() {
        check(!part.is_empty(), || format!("consumer {who} got nothing"))?;
        for message in part {
            let key = message.key().ok_or("a message without a key")?;
            let body = text(message)?;
            if let Some((owner, last)) = seen.insert(key.clone(), (who, body.clone())) {
                check(owner == who, || format!("both consumers got {key}"))?;
                check(last < body, || format!("{body} came after {last}"))?;
            }
        }
    }
    same(12, seen.len())
}

pub async fn negative_acks(rig: &Rig) -> Outcome {
    let mut consumer = rig.subscribe("t", SubType::Shared).await?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 4).await?;
    for i in 0..4 {
        let message = receive(&mut consumer).await?;
        if i % 2 == 0 {
            consumer.nack(&message).await?;
        } else {
            consumer.ack(&message).await?;
        }
    }
    expect_sorted(&mut consumer, vec!["m000".into(), "m002".into()]).await?;
    silent(&mut consumer).await
}

pub async fn dead_letters(rig: &Rig) -> Outcome {
    let mut letters = rig.subscribe("dead", SubType::Exclusive).await?;
    let policy = DeadLetterPolicy { max_redeliver_count: 1, dead_letter_topic: rig.topic("dead") };
    let mut consumer =
        rig.subscription(SubType::Shared).with_topic(rig.topic("t")).with_dead_letter_policy(policy).build().await?;
    let mut producer = rig.producer("t").await?;
    send(&mut producer, "m", 1).await?;
    // The client counts deliveries by itself, and sends the letter instead of delivering once more.
    let mut letter = None;
    for _ in 0..4 {
        tokio::select! {
            message = receive(&mut consumer) => consumer.nack(&message?).await?,
            message = take(&mut letters, 1) => { letter = Some(message?); break; }
        }
    }
    same(Some(numbered("m", 1)), letter)
}

/// Consumes from the topics that there are, and from one that is made later.
pub async fn pattern(rig: &Rig) -> Outcome {
    for local in ["seen-a", "seen-b", "other"] {
        send(&mut rig.producer(local).await?, &format!("{local}-"), 2).await?;
    }
    let mut consumer = rig
        .subscription(SubType::Shared)
        .with_lookup_namespace(rig.namespace.clone())
        .with_topic_regex(Regex::new("seen-.*")?)
        .with_topic_refresh(Duration::from_millis(200))
        .build()
        .await?;
    expect_sorted(&mut consumer, [numbered("seen-a-", 2), numbered("seen-b-", 2)].concat()).await?;
    let mut late = rig.producer("seen-late").await?;
    send(&mut late, "late-", 2).await?;
    expect_sorted(&mut consumer, numbered("late-", 2)).await?;
    silent(&mut consumer).await
}

/// Sends in order while the test moves the topics.
///
/// Messages may come again after a move; none is missing, and the first arrivals of each topic are in order.
pub async fn stream_over_moves(rig: &Rig) -> Outcome {
    const COUNT: usize = 100;
    let locals = ["t-0", "t-1", "t-2", "t-3"];
    let topics = locals.map(|local| rig.topic(local));
    let mut consumer = rig.subscription(SubType::Exclusive).with_topics(&topics).build().await?;
    let mut sending = Vec::new();
    for local in locals {
        let mut producer = rig.producer(local).await?;
        sending.push(tokio::spawn(async move { send(&mut producer, "m", COUNT).await }));
    }
    let expected = numbered("m", COUNT);
    let mut next: BTreeMap<String, usize> = topics.into_iter().map(|topic| (topic, 0)).collect();
    while next.values().any(|count| *count < COUNT) {
        let message = receive(&mut consumer).await.map_err(|error| format!("received up to {next:?}: {error}"))?;
        let body = text(&message)?;
        consumer.ack(&message).await?;
        let at = next.get_mut(&message.topic).ok_or_else(|| format!("a message of {}", message.topic))?;
        if !expected[..*at].contains(&body) {
            same(&expected[*at], &body)?;
            *at += 1;
        }
    }
    for task in sending {
        task.await??;
    }
    Ok(())
}
