//! Streams that end or carry what no guest says.

use std::time::Duration;

use super::support::copy_out;
use rollout::{
    environment::{CommandRole, EnvironmentError, Exec, FileRead, Outcome, guest::Guest},
    record::{
        log::{LogWriter, create_log_files},
        redact::Redactor,
    },
};
use rollout_guest::{
    Ending, FileLookup, GuestReply, Item, KillScope, MAX_CONNECTIONS, MAX_DATA, OUTPUT_WINDOW, Stream,
    TunnelStep, VERSION, WINDOW, encode_reply,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};

/// A client, and the other end of its stream after the hello.
async fn connect() -> (Guest, DuplexStream) {
    let (ours, mut theirs) = duplex(1 << 20);
    theirs
        .write_all(&encode_reply(0, &GuestReply::Hello { version: VERSION, scope: KillScope::Namespace }))
        .await
        .unwrap();
    let (reader, writer) = split(ours);
    (Guest::connect(reader, writer, None).await.unwrap(), theirs)
}

async fn refused(said: &[u8]) -> String {
    let (ours, mut theirs) = duplex(1 << 20);
    theirs.write_all(said).await.unwrap();
    drop(theirs);
    let (reader, writer) = split(ours);
    match Guest::connect(reader, writer, None).await {
        Err(EnvironmentError::Start(reason)) => reason,
        other => panic!("{:?}", other.err()),
    }
}

#[tokio::test]
async fn only_a_guest_of_the_same_version_is_accepted() {
    let other = encode_reply(0, &GuestReply::Hello { version: VERSION + 1, scope: KillScope::Namespace });
    insta::assert_snapshot!(refused(&other).await, @"the guest does not answer: its version is 6, expected 5");
    insta::assert_snapshot!(refused(b"").await, @"the guest does not answer: it ended");
    insta::assert_snapshot!(refused(b"sh: not found\n").await, @"the guest does not answer: it sent a malformed message");
    insta::assert_snapshot!(refused(&encode_reply(0, &GuestReply::Done)).await, @"the guest does not answer: its first message is invalid");
}

#[tokio::test]
async fn nonsense_makes_every_pending_and_later_call_lost() {
    let unasked = encode_reply(99, &GuestReply::Done);
    let wrong_kind = encode_reply(1, &GuestReply::Process("x".to_owned()));
    let endless = u32::MAX.to_le_bytes().to_vec();
    let garbage = [4, 0, 0, 0, 1, 0, 0, 0].to_vec();
    for said in [unasked, wrong_kind, endless, garbage] {
        let (guest, mut theirs) = connect().await;
        theirs.write_all(&said).await.unwrap();
        let pending = guest.make_dirs(&["/a"], false).await;
        assert!(matches!(pending, Err(EnvironmentError::Lost(_))), "{pending:?}");
        let later = guest.kill_all().await;
        assert!(matches!(later, Err(EnvironmentError::Lost(_))), "{later:?}");
    }
}

#[tokio::test]
async fn the_end_of_the_stream_ends_pending_calls() {
    let (guest, mut theirs) = connect().await;
    let pending = guest.survivors();
    let ends = async {
        theirs.read_u8().await.unwrap();
        drop(theirs);
    };
    let (pending, ()) = tokio::join!(pending, ends);
    let Err(EnvironmentError::Lost(reason)) = pending else { panic!("{pending:?}") };
    insta::assert_snapshot!(reason, @"the environment was lost: it ended");
}

#[tokio::test]
async fn finishing_waits_for_the_output_that_has_come() {
    let (guest, mut theirs) = connect().await;
    let dir = tempfile::tempdir().unwrap();
    let [stdout, stderr] =
        create_log_files(dir.path()).unwrap().map(|file| LogWriter::new(file, &Redactor::default()));
    let answers = async {
        theirs.read_u8().await.unwrap();
        let exited = GuestReply::Exited { ending: Ending::Code(0), oom_killed: false };
        theirs.write_all(&encode_reply(1, &exited)).await.unwrap();
        for _ in 0..OUTPUT_WINDOW {
            let late = GuestReply::Output { stream: Stream::Stdout, bytes: vec![b'x'; 62_500] };
            theirs.write_all(&encode_reply(1, &late)).await.unwrap();
        }
        drop(theirs);
    };
    let exec = Exec { role: CommandRole::Agent, argv: &["true"], env: &[], deadline: None, stdout, stderr };
    let (exit, ()) = tokio::join!(guest.exec(exec), answers);
    assert_eq!(exit.unwrap().outcome, Outcome::Code(0));
    guest.finish().await;
    assert_eq!(std::fs::read(dir.path().join("stdout.txt")).unwrap().len(), 500_000);
}

#[tokio::test]
async fn a_path_to_outside_of_the_target_is_rejected() {
    let (guest, mut theirs) = connect().await;
    let dir = tempfile::tempdir().unwrap();
    let file = Item::File { name: b"../escaped".to_vec(), mode: 0o644, seconds: 0, nanoseconds: 0 };
    let answers = async {
        theirs.read_u8().await.unwrap();
        theirs.write_all(&encode_reply(1, &GuestReply::Item(file))).await.unwrap();
        theirs.write_all(&encode_reply(1, &GuestReply::Done)).await.unwrap();
    };
    let target = dir.path().join("target");
    let (copied, ()) = tokio::join!(guest.copy_from(copy_out("/logs", &target)), answers);
    assert!(matches!(copied, Err(EnvironmentError::Lost(_))), "{copied:?}");
    assert!(!dir.path().join("escaped").exists());
}

#[tokio::test]
async fn a_file_that_grows_without_end_is_not_kept_in_memory() {
    let (guest, mut theirs) = connect().await;
    let answers = async {
        theirs.read_u8().await.unwrap();
        theirs.write_all(&encode_reply(1, &GuestReply::Found(FileLookup::File(())))).await.unwrap();
        let more = encode_reply(1, &GuestReply::Item(Item::Data(vec![0; 1000])));
        while theirs.write_all(&more).await.is_ok() {}
    };
    tokio::select! {
        read = guest.read_file("/file", 5000) => {
            assert_eq!(read.unwrap(), FileRead::TooLarge(6000));
        }
        () = answers => panic!("the stream ended"),
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("it is read forever"),
    }
}

#[tokio::test]
async fn output_without_room_for_it_ends_the_stream() {
    let (guest, mut theirs) = connect().await;
    // The log is a full pipe, so nothing is taken after the first outputs.
    let (_reader, writer) = std::io::pipe().unwrap();
    let stdout = LogWriter::new(std::os::fd::OwnedFd::from(writer).into(), &Redactor::default());
    let answers = async {
        let output = GuestReply::Output { stream: Stream::Stdout, bytes: vec![b'x'; MAX_DATA] };
        for _ in 0..3 * OUTPUT_WINDOW {
            theirs.write_all(&encode_reply(1, &output)).await.unwrap();
        }
    };
    let stderr = LogWriter::discard();
    let exec = Exec { role: CommandRole::Agent, argv: &["yes"], env: &[], deadline: None, stdout, stderr };
    tokio::select! {
        exit = guest.exec(exec) => panic!("{exit:?}"),
        () = answers => {}
    }
    let later = guest.kill_all().await;
    let Err(EnvironmentError::Lost(reason)) = later else { panic!("{later:?}") };
    insta::assert_snapshot!(reason, @"the environment was lost: it sent more output than there is room for");
}

#[tokio::test]
async fn a_guest_that_exceeds_the_limits_of_a_tunnel_is_lost() {
    let data = |bytes| TunnelStep::Data(vec![0; bytes]);
    let open = |connection| (connection, TunnelStep::Open);
    let full = (0..WINDOW / MAX_DATA).map(|_| (1, data(MAX_DATA)));
    for (what, steps) in [
        (
            "more data than it has credit for",
            [open(1)].into_iter().chain(full).chain([(1, data(1))]).collect(),
        ),
        ("more connections than allowed", (1..=MAX_CONNECTIONS as u32 + 1).map(open).collect()),
        ("a connection of another number", vec![open(2)]),
        ("a number that was used", vec![open(1), open(1)]),
        ("data of a connection that is not open", vec![(1, data(1))]),
        ("data after its end", vec![open(1), (1, TunnelStep::End), (1, data(1))]),
        ("two ends", vec![open(1), (1, TunnelStep::End), (1, TunnelStep::End)]),
        ("credit for what was not sent", vec![open(1), (1, TunnelStep::Credit(1))]),
    ] as [(&str, Vec<_>); 8]
    {
        // Connections are accepted by the kernel, and nothing is read from them.
        let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (guest, mut theirs) = connect().await;
        theirs.write_all(&encode_reply(1, &GuestReply::Offered { port: 1 })).await.unwrap();
        assert_eq!(guest.offer(service.local_addr().unwrap()).await.unwrap(), 1);
        // Written at once, so that no task runs in between.
        let steps = steps.into_iter().map(|(connection, step)| GuestReply::Tunnel { connection, step });
        let frames: Vec<u8> = steps.flat_map(|step| encode_reply(1, &step)).collect();
        theirs.write_all(&frames).await.unwrap();
        let later = guest.kill_all().await;
        assert!(matches!(later, Err(EnvironmentError::Lost(_))), "{what}: {later:?}");
    }
}
