//! What a scenario works with: a namespace of its own, and ways to send, receive and check.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use futures::TryStreamExt;
use pulsar::consumer::{ConsumerOptions, InitialPosition, Message};
use pulsar::{Consumer, ConsumerBuilder, Producer, Pulsar, SubType, TokioExecutor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const SCENARIO_PATIENCE: Duration = Duration::from_secs(100);
pub const SILENCE: Duration = Duration::from_millis(300);

pub type Failure = Box<dyn Error + Send + Sync>;
pub type Outcome<T = ()> = Result<T, Failure>;
pub type Texts = Consumer<String, TokioExecutor>;
pub type Sender = Producer<TokioExecutor>;

pub struct Rig {
    pub client: Pulsar<TokioExecutor>,
    pub namespace: String,
    admin: String,
}

impl Rig {
    pub async fn connect(service_url: &str, admin_url: &str, namespace: &str) -> Outcome<Rig> {
        Ok(Rig {
            client: Pulsar::builder(service_url, TokioExecutor).build().await?,
            namespace: namespace.to_string(),
            admin: admin_url.trim_start_matches("http://").to_string(),
        })
    }

    pub fn topic(&self, local: &str) -> String {
        format!("persistent://{}/{local}", self.namespace)
    }

    /// The subscription "s", from the first message on.
    pub fn subscription(&self, kind: SubType) -> ConsumerBuilder<TokioExecutor> {
        self.client
            .consumer()
            .with_subscription("s")
            .with_subscription_type(kind)
            .with_options(ConsumerOptions::default().with_initial_position(InitialPosition::Earliest))
    }

    pub async fn subscribe(&self, local: &str, kind: SubType) -> Outcome<Texts> {
        Ok(self.subscription(kind).with_topic(self.topic(local)).build().await?)
    }

    pub async fn producer(&self, local: &str) -> Outcome<Sender> {
        Ok(self.client.producer().with_topic(self.topic(local)).build().await?)
    }

    pub async fn create_partitions(&self, local: &str, count: u32) -> Outcome {
        let body = count.to_string();
        let request = format!(
            "PUT /admin/v2/persistent/{}/{local}/partitions HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.namespace, self.admin, body.len()
        );
        let mut connection = TcpStream::connect(&self.admin).await?;
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        timeout(PATIENCE, connection.read_to_string(&mut answer)).await??;
        check(answer.starts_with("HTTP/1.1 204"), || answer.clone())
    }
}

pub fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(otherwise().into())
    }
}

pub fn same<T: PartialEq + Debug>(expected: T, found: T) -> Outcome {
    check(expected == found, || format!("expected {expected:?}, found {found:?}"))
}

pub fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i:03}")).collect()
}

/// Sends prefix000, prefix001 and so on, each after the receipt of the one before.
pub async fn send(producer: &mut Sender, prefix: &str, count: usize) -> Outcome {
    for text in numbered(prefix, count) {
        timeout(PATIENCE, producer.send_non_blocking(text).await?).await??;
    }
    Ok(())
}

pub async fn receive(consumer: &mut Texts) -> Outcome<Message<String>> {
    timeout(PATIENCE, consumer.try_next())
        .await
        .map_err(|_| "no message came")??
        .ok_or_else(|| "the consumer ended".into())
}

pub fn text(message: &Message<String>) -> Outcome<String> {
    Ok(message.deserialize()?)
}

/// Receives and acknowledges so many messages; returns their texts in the order of arrival.
pub async fn take(consumer: &mut Texts, count: usize) -> Outcome<Vec<String>> {
    let mut texts = Vec::new();
    for i in 0..count {
        let message = receive(consumer).await.map_err(|error| format!("{i} of {count} came: {error}"))?;
        texts.push(text(&message)?);
        consumer.ack(&message).await?;
    }
    Ok(texts)
}

/// Takes messages, which must be these and in this order.
pub async fn expect(consumer: &mut Texts, expected: Vec<String>) -> Outcome {
    same(expected.clone(), take(consumer, expected.len()).await?)
}

/// Takes messages, which must be these in any order.
pub async fn expect_sorted(consumer: &mut Texts, expected: Vec<String>) -> Outcome {
    let mut found = take(consumer, expected.len()).await?;
    found.sort();
    same(expected, found)
}

/// Fails if a message comes.
pub async fn silent(consumer: &mut Texts) -> Outcome {
    match timeout(SILENCE, consumer.try_next()).await {
        Err(_) => Ok(()),
        Ok(message) => Err(format!("unexpected message: {:?}", message?.map(|it| it.deserialize())).into()),
    }
}

/// Takes and acknowledges so many messages from two consumers; returns what each of them got.
pub async fn share(first: &mut Texts, second: &mut Texts, count: usize) -> Outcome<[Vec<Message<String>>; 2]> {
    let mut parts = [Vec::new(), Vec::new()];
    for i in 0..count {
        let came = timeout(PATIENCE, async {
            tokio::select! {
                message = first.try_next() => message.map(|it| (0, it)),
                message = second.try_next() => message.map(|it| (1, it)),
            }
        });
        let (who, message) = came.await.map_err(|_| format!("{i} of {count} came"))??;
        let message = message.ok_or("a consumer ended")?;
        let consumer = if who == 0 { &mut *first } else { &mut *second };
        consumer.ack(&message).await?;
        parts[who].push(message);
    }
    Ok(parts)
}
