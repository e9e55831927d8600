//! A scripted model server as a separate process, for examples and measurements.
//!
//! `model-server [--port PORT] [--script NAME] [--key KEY]` prints its base address as the first line. If its
//! standard input is a pipe, it exits when the pipe closes, so that it does not outlive the process that
//! started it.
#![expect(clippy::print_stdout, reason = "it prints its address for the process that started it")]

use std::{fs, io::Write as _, os::unix::fs::FileTypeExt as _, process::ExitCode};

use rollout_testkit::{ModelServer, Script};

fn main() -> ExitCode {
    match start(std::env::args().skip(1)) {
        Ok(server) => {
            println!("{}", server.url());
            // The address must not stay in a buffer; if stdout is closed, serving continues.
            let _ = std::io::stdout().flush();
            wait();
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}\nusage: model-server [--port PORT] [--script NAME] [--key KEY]");
            eprintln!("scripts: {}", Script::NAMES.join(", "));
            ExitCode::from(2)
        }
    }
}

fn start(mut arguments: impl Iterator<Item = String>) -> Result<ModelServer, String> {
    let (mut port, mut script, mut key) = (0, "arithmetic".to_owned(), None);
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("a value is missing after `{option}`"))?;
        match option.as_str() {
            "--port" => port = value.parse().map_err(|_| format!("`{value}` is not a port"))?,
            "--script" => script = value,
            "--key" => key = Some(value),
            _ => return Err(format!("unknown option `{option}`")),
        }
    }
    let script = Script::named(&script).ok_or_else(|| format!("unknown script `{script}`"))?;
    let server = ModelServer::start_at(script, port);
    Ok(match key {
        Some(key) => server.key(&key),
        None => server,
    })
}

/// Waits for the end of the pipe, or for a signal if there is none.
fn wait() {
    let piped = fs::metadata("/dev/stdin").is_ok_and(|stdin| stdin.file_type().is_fifo());
    if piped {
        // However reading ends, the other end is closed.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    } else {
        loop {
            std::thread::park();
        }
    }
}
