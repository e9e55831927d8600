//! Fakes of cloud sandboxes: servers on loopback that speak the protocols of vendors, and run commands in native
//! sandboxes.

mod machine;
