//! Fakes of cloud sandboxes: servers on loopback that speak the protocols of vendors, and run commands in native
//! sandboxes.

mod daytona;
mod e2b;
mod fake;
mod faults;
mod fly;
mod machine;
mod modal;
mod server;

pub use self::{
    daytona::DaytonaServer,
    e2b::E2bServer,
    fake::{CloudFake, FakeSandbox},
    faults::{CloudCall, CloudFaults, CloudTrouble},
    fly::FlyServer,
    modal::ModalServer,
};
