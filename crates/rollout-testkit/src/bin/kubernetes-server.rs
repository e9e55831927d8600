//! A Kubernetes API server for tests as a separate process, for measurements. It is also its own sandbox helper.
//!
//! `kubernetes-server [--port PORT]` prints the path of its kubeconfig as the first line, and runs until its standard
//! input ends.
#![expect(clippy::print_stdout, reason = "it prints its address for the process that started it")]

use std::{io::Write as _, process::ExitCode};

use rollout_testkit::KubernetesServer;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == rollout_sandbox::HELPER_ARG) {
        rollout_sandbox::helper_main();
    }
    let port = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Some(0),
        ["--port", port] => port.parse().ok(),
        _ => None,
    };
    let (Some(port), Ok(helper)) = (port, std::env::current_exe()) else {
        eprintln!("usage: kubernetes-server [--port PORT]");
        return ExitCode::from(2);
    };
    let server = KubernetesServer::start_at(helper, port);
    println!("{}", server.kubeconfig().display());
    // The path must not stay in a buffer; if stdout is closed, serving continues.
    let _ = std::io::stdout().flush();
    // However reading ends, the other end is closed.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    ExitCode::SUCCESS
}
