//! Fixtures for tests of Rollout: jobs in a temporary directory, run with the command or the library, an
//! environment that does nothing, a scripted [model server](ModelServer), and the [`mod@conformance`] suite
//! that every provider must pass.

mod api_fault;
mod browser;
mod clouds;
mod cluster;
mod command;
pub mod conformance;
mod docker;
mod gate;
mod git;
mod hub;
mod idle;
mod job;
mod kubernetes;
mod large;
mod leftover;
mod library;
mod model;
mod npm;
mod patience;
mod piped;
mod process;
mod python;
mod repo;
mod search;
mod server;
mod services;
mod subject;
mod task;
mod timed;
mod timeless;
mod user;
mod variable;

pub use api_fault::{ApiFault, ApiTrouble};
pub use browser::{Browser, raw_request};
pub use clouds::{
    CloudCall, CloudFake, CloudFaults, CloudTrouble, DaytonaServer, E2bServer, FakeSandbox, FlyServer,
    ModalServer,
};
pub use cluster::{ClusterNamespace, StoppedPart, TestCluster};
pub use command::{Running, finished_trials, link_program};
pub use docker::{Holdings, OwnEngine, TestEngine};
pub use gate::{Arrival, Gate};
pub use git::{GitServer, PackFault, basic_authorization};
pub use hub::{Fault, HubServer, Trouble};
pub use idle::{IdleProvider, KillCounter, PricedProvider, SilentProvider};
pub use job::{Binary, Finished, TestJob};
pub use kubernetes::{ApiCalls, KubernetesServer, PodFault};
pub use large::{LargeJob, Measured, READERS};
pub use leftover::{processes_and_mounts_below, runs_in, until};
pub use library::{Library, Started};
pub use model::{
    Cut, Hold, ModelReply, ModelRequest, ModelServer, Reasoning, RequestDialect, Script, Split, TokenCounts,
    TokenFields,
};
pub use npm::NpmRegistry;
pub use patience::{long_enough, long_enough_async};
pub use process::in_own_process;
pub use python::Python;
pub use repo::TestRepo;
pub use search::files_holding;
pub use server::FileServer;
pub use services::TestRegistry;
pub use task::TestTask;
pub use timed::{TimedProvider, Times};
pub use timeless::{timeless_line, without_times};
