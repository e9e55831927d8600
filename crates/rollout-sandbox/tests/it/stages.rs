//! Stages of a Dockerfile that are built at the same time.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use rollout_sandbox::Network;

use crate::common::Host;
use crate::project::{Project, chain};

/// A line of a Dockerfile that says its name to a server and waits for a word from it.
fn meet(port: u16, name: &str) -> String {
    format!(
        "SHELL [\"/bin/bash\", \"-c\"]\nRUN exec 3<>/dev/tcp/127.0.0.1/{port} && echo {name} >&3 && read -u 3 word\n"
    )
}

fn project(dockerfile: &str) -> Project {
    Project { network: Network::Host, ..Project::new(dockerfile) }
}

/// Accepts one command, and returns its name.
fn accept(listener: &TcpListener) -> (String, TcpStream) {
    let (stream, _) = listener.accept().unwrap();
    let mut name = String::new();
    BufReader::new(stream.try_clone().unwrap()).read_line(&mut name).unwrap();
    (name.trim().to_owned(), stream)
}

fn release(mut stream: TcpStream) {
    stream.write_all(b"go\n").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stages_that_do_not_need_each_other_run_at_the_same_time() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return;
    }
    let host = Host::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let project = project(&format!(
        "FROM base AS one\n{}FROM base AS two\n{}FROM base\nCOPY --from=one /etc/hostname /1\nCOPY --from=two /etc/hostname /2\n",
        meet(port, "one"),
        meet(port, "two"),
    ));
    // Each waits until both are running.
    let met = tokio::task::spawn_blocking(move || {
        let (first, second) = (accept(&listener), accept(&listener));
        let mut names = [first.0, second.0];
        names.sort();
        release(first.1);
        release(second.1);
        names
    });
    project.build(&host).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(met.await.unwrap(), ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_layers_are_built_at_a_time_than_there_are_processors() {
    let host = Host::start().await;
    let processors = std::thread::available_parallelism().unwrap().get();
    let stages = processors + 2;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut dockerfile = String::new();
    for stage in 0..stages {
        dockerfile += &format!("FROM base AS s{stage}\n{}", meet(port, &stage.to_string()));
    }
    dockerfile += "FROM base\n";
    for stage in 0..stages {
        dockerfile += &format!("COPY --from=s{stage} /etc/hostname /{stage}\n");
    }
    let project = project(&dockerfile);
    let served = tokio::task::spawn_blocking(move || {
        let (mut waiting, mut most) = (Vec::new(), 0);
        for left in (1..=stages).rev() {
            // All that can run at a time are here before one of them may end.
            while waiting.len() < processors.min(left) {
                listener.set_nonblocking(false).unwrap();
                waiting.push(accept(&listener).1);
            }
            listener.set_nonblocking(true).unwrap();
            assert!(listener.accept().is_err(), "one more is running");
            most = waiting.len().max(most);
            release(waiting.remove(0));
        }
        most
    });
    project.build(&host).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(served.await.unwrap(), processors);
}

#[tokio::test]
async fn lines_of_stages_are_labelled_and_whole() {
    let host = Host::start().await;
    let loud = "RUN for n in $(seq 200); do printf \"from \"; printf \"$0 \"; echo \"line $n\"; done\n";
    let project = Project::new(&format!(
        "FROM base AS one\n{loud}FROM base\nRUN echo first; {}FROM base AS last\nCOPY --from=one /etc/hostname /1\nCOPY --from=1 /etc/hostname /2\n",
        &loud[4..],
    ));
    project.build(&host).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let log = project.log();
    for stage in ["one", "stage 1"] {
        let lines: Vec<&str> =
            log.lines().filter_map(|line| line.strip_prefix(&format!("[{stage}] "))).collect();
        let printed: Vec<&str> = lines.iter().copied().filter(|line| line.starts_with("from ")).collect();
        let expected: Vec<String> = (1..=200).map(|n| format!("from /bin/sh line {n}")).collect();
        assert_eq!(printed, expected, "{stage}");
        assert!(lines[0].starts_with("Step 1/1 : RUN "), "{stage}: {}", lines[0]);
    }
    assert!(log.lines().all(|line| line.starts_with('[')), "{log}");
    assert!(log.contains("[last] Step 2/2 : COPY --from=1 /etc/hostname /2\n"), "{log}");
}

#[tokio::test]
async fn the_first_failure_ends_the_other_stages() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base AS one\nRUN sleep 1000\nFROM base AS two\nRUN exit 5\nFROM base\nCOPY --from=one /a /a\nCOPY --from=two /b /b\n",
    );
    let error = chain(&project.build(&host).await.unwrap_err());
    assert!(error.starts_with("Dockerfile line 4 `RUN exit 5`: the command exited with code 5"), "{error}");
}

#[tokio::test]
async fn stages_that_share_a_layer_build_it_once() {
    let host = Host::start().await;
    let shared = "RUN cat /proc/sys/kernel/random/uuid > /id && echo built\n";
    let project = Project::new(&format!(
        "FROM base AS one\n{shared}FROM base AS two\n{shared}FROM base\nCOPY --from=one /id /1\nCOPY --from=two /id /2\n"
    ));
    let seen = project.look(&host, "cmp /1 /2 && echo same").await;
    assert_eq!(seen, "same\n");
    assert_eq!(project.log().matches("] built\n").count(), 1);
}

#[tokio::test]
async fn caches_in_another_order_do_not_block_each_other() {
    let host = Host::start().await;
    let mount = |id: &str| format!("--mount=type=cache,id={id},target=/{id}");
    let (x, y) = (mount("x"), mount("y"));
    let mut dockerfile = String::new();
    for number in 0..6 {
        let mounts = if number % 2 == 0 { format!("{x} {y}") } else { format!("{y} {x}") };
        dockerfile += &format!("FROM base AS s{number}\nRUN {mounts} echo {number} > /made\n");
    }
    dockerfile += "FROM base\n";
    for number in 0..6 {
        dockerfile += &format!("COPY --from=s{number} /made /{number}\n");
    }
    let project = Project::new(&dockerfile);
    assert_eq!(project.look(&host, "cat /0 /1 /2 /3 /4 /5").await, "0\n1\n2\n3\n4\n5\n");
}

#[tokio::test]
async fn a_trigger_can_use_a_stage_that_nothing_else_needs() {
    let host = Host::start().await;
    let project = Project::new(
        "FROM base AS tools\nRUN echo tool > /tool\nFROM base AS parent\nONBUILD COPY --from=tools /tool /got\nFROM parent\n",
    );
    assert_eq!(project.look(&host, "cat /got").await, "tool\n");
}
