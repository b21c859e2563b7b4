//! Runs scenarios of the Rust client against a server, one per line of standard input.
//!
//! Arguments: the service URL, the admin URL. A line "NAMESPACE SCENARIO" runs one; the answer is one JSON line: name,
//! error.

mod messages;
mod rig;
mod subscriptions;

use futures::future::BoxFuture;
use rig::{Outcome, Rig};

type Scenario = fn(&Rig) -> BoxFuture<'_, Outcome>;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("produce-and-consume", |rig| Box::pin(messages::produce_and_consume(rig))),
    ("batches", |rig| Box::pin(messages::batches(rig))),
    ("every-compression", |rig| Box::pin(messages::every_compression(rig))),
    ("partitions", |rig| Box::pin(messages::partitions(rig))),
    ("exclusive", |rig| Box::pin(subscriptions::exclusive(rig))),
    ("failover", |rig| Box::pin(subscriptions::failover(rig))),
    ("shared", |rig| Box::pin(subscriptions::shared(rig))),
    ("key-shared", |rig| Box::pin(subscriptions::key_shared(rig))),
    ("negative-acks", |rig| Box::pin(subscriptions::negative_acks(rig))),
    ("seek", |rig| Box::pin(messages::seek(rig))),
    ("reader", |rig| Box::pin(messages::reader(rig))),
    ("dead-letters", |rig| Box::pin(subscriptions::dead_letters(rig))),
    ("schema", |rig| Box::pin(messages::schema(rig))),
    ("delayed", |rig| Box::pin(messages::delayed(rig))),
    ("pattern", |rig| Box::pin(subscriptions::pattern(rig))),
    ("stream-over-moves", |rig| Box::pin(subscriptions::stream_over_moves(rig))),
    ("missing-namespace", |rig| Box::pin(messages::missing_namespace(rig))),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (namespace, name) = line.split_once(' ').expect("NAMESPACE SCENARIO");
        let outcome = runtime.block_on(run(&arguments[1], &arguments[2], namespace, name));
        let error = outcome.err().map_or(String::new(), |error| error.to_string());
        println!("{}", serde_json::json!({ "name": name, "error": error }));
    }
}

async fn run(service_url: &str, admin_url: &str, namespace: &str, name: &str) -> Outcome {
    let (_, scenario) = SCENARIOS
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| format!("no scenario {name}"))?;
    let rig = Rig::connect(service_url, admin_url, namespace).await?;
    tokio::time::timeout(rig::SCENARIO_PATIENCE, scenario(&rig))
        .await
        .map_err(|_| format!("{name} did not end"))?
}
