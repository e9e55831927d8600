//! E2B.

use rollout_testkit::{E2bServer, conformance::Ability};

use super::Cloud;

fn cloud() -> Cloud {
    Cloud::new(E2bServer::start(env!("CARGO_BIN_EXE_rollout"))).lacking(Ability::FractionsOfCpus)
}

cloud_tests!(cloud());
