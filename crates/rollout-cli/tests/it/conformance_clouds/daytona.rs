//! Daytona.

use rollout_testkit::{CloudFake as _, DaytonaServer, Python, conformance::Ability};
use serde_json::{Value, json};

use super::Cloud;

fn server() -> DaytonaServer {
    DaytonaServer::start(env!("CARGO_BIN_EXE_rollout"))
}

fn cloud() -> Cloud {
    Cloud::new(server()).lacking(Ability::FractionsOfCpus)
}

cloud_tests!(cloud());

/// The official client accepts the fake, and means the same by its messages.
#[test]
fn the_client_of_daytona_drives_the_fake() {
    let fake = server();
    let variables: serde_json::Map<String, Value> =
        fake.variables().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let python = Python::with_packages("daytona.txt");
    let output = python.run(include_str!("daytona_sdk.py"), &json!({"variables": variables}).to_string());
    let seen: Value = serde_json::from_str(&output).expect("the program prints JSON");
    assert_eq!(
        seen,
        json!({
            "snapshot": ["of-the-client", "active"],
            "logs": true,
            "broken": true,
            "state": "started",
            "size": [1, 1, 3],
            "lifetime": true,
            "exec": [0, "from the context\n11534336\nword\n"],
            "code": 3,
            "session": [0, "out\n", "err\n"],
            "running": ["sleep 1000", null],
            "commands": 2,
            "preview": true,
            "listed": [true],
            "by name": true,
            "unknown": 400,
            "left": 0,
            "snapshots": ["broken"],
        }),
        "{seen:#}"
    );
    assert!(fake.sandboxes().is_empty());
}
