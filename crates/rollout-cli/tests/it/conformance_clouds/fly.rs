//! Fly.

use rollout_testkit::{FlyServer, conformance::Ability};

use super::Cloud;

fn cloud() -> Cloud {
    let fake = FlyServer::start(env!("CARGO_BIN_EXE_rollout"));
    Cloud::new(fake).lacking(Ability::FractionsOfCpus).lacking(Ability::NoNetwork)
}

cloud_tests!(cloud());
