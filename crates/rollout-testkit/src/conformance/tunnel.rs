//! Services of the host that are offered inside: connections through the tunnel of an environment.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use rollout::{
    environment::{CommandRole, Exec, FileRead, Outcome},
    record::{log::LogWriter, redact::Redactor},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::{Ability, Inside, Suite};
use crate::TestTask;

/// The most connections to a service at a time, as documented.
const MAX_CONNECTIONS: usize = 256;

/// Starts a service that handles each connection with this function.
async fn serve<F: Future<Output = io::Result<()>> + Send + 'static>(
    handle: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    address
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let (mut read, mut write) = stream.split();
    tokio::io::copy(&mut read, &mut write).await?;
    write.shutdown().await
}

/// Bash that sends a line to a port, and prints the line that comes back.
fn ask(port: u16, line: &str) -> String {
    format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo {line} >&3 && read -r line <&3 && echo $line")
}

/// Runs Perl inside, where `dial` connects to the port and `take` reads so many bytes; returns what it prints.
async fn perl(inside: &Inside, port: u16, program: &str) -> String {
    let (exit, printed) = inside.exec(&["perl", "-e", &perl_program(port, program)], None).await.unwrap();
    assert_eq!(exit.outcome, Outcome::Code(0), "{printed}");
    printed
}

fn perl_program(port: u16, program: &str) -> String {
    format!(
        r#"use strict; use IO::Socket::INET; $| = 1; $SIG{{PIPE}} = "IGNORE";
        sub dial {{ IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => {port}, Proto => "tcp") or die "$!" }}
        sub take {{
            my ($socket, $count) = @_; my $all = "";
            while (length($all) < $count) {{
                my $got = sysread($socket, $all, $count - length($all), length($all));
                die "$!" unless defined $got; last if $got == 0;
            }}
            return $all;
        }}
        sub give {{
            my ($socket, $all) = @_; my $sent = 0;
            while ($sent < length($all)) {{ $sent += syswrite($socket, $all, 65536, $sent) || die "$!" }}
        }}
        {program}"#
    )
}

/// Starts a command and does not wait for it.
fn start<'a>(
    inside: &'a Inside,
    argv: &'a [&'a str],
    stdout: LogWriter,
) -> impl Future<Output = Outcome> + 'a {
    let (env, stderr) = (&[], LogWriter::discard());
    let command = Exec { role: CommandRole::Agent, argv, env, deadline: None, stdout, stderr };
    async move { inside.environment().exec(command).await.unwrap().outcome }
}

pub fn a_service_of_the_host_answers_agent_and_verifier_with_and_without_a_network(suite: &Suite) {
    let work = async |inside: &Inside| {
        let port = inside.environment().offer(serve(echo).await).await.unwrap();
        assert_eq!(inside.bash(&ask(port, "agent")).await, "agent\n");
        assert_eq!(inside.verifier_bash(&ask(port, "verifier")).await, "verifier\n");
    };
    suite.inside(TestTask::new("task"), work);
    suite.inside_alone(TestTask::new("task"), work);
}

pub fn many_connections_at_once_keep_their_data_apart(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&most);
        let service = serve(move |stream| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&counted));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let ended = echo(stream).await;
                now.fetch_sub(1, Ordering::SeqCst);
                ended
            }
        })
        .await;
        let port = inside.environment().offer(service).await.unwrap();
        let program = r#"
            my @all = map { dial() } 1..64;
            for my $round (1..20) {
                give($all[$_], sprintf("%04d-%04d-", $round, $_) x 300) for 0..63;
                for my $number (reverse 0..63) {
                    my $expected = sprintf("%04d-%04d-", $round, $number) x 300;
                    die "$number in $round" if take($all[$number], length $expected) ne $expected;
                }
            }
            print "all";"#;
        assert_eq!(perl(inside, port, program).await, "all");
        assert_eq!(most.load(Ordering::SeqCst), 64);
    });
}

pub fn connections_above_the_limit_wait_for_others_to_end(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&most);
        let service = serve(move |mut stream| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&counted));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await?;
                now.fetch_sub(1, Ordering::SeqCst);
                write.shutdown().await
            }
        })
        .await;
        let port = inside.environment().offer(service).await.unwrap();
        let program = r#"
            my @all = map { my $one = dial(); give($one, "x"); $one } 1..300;
            # The first ones are answered while all are open. Each one that ends lets another in.
            my @first = splice(@all, 0, 256);
            for my $one (@first) { die "unanswered" if take($one, 1) ne "x" }
            close $_ for @first;
            for my $one (@all) { die "unanswered" if take($one, 1) ne "x" }
            print "all";"#;
        assert_eq!(perl(inside, port, program).await, "all");
        assert_eq!(most.load(Ordering::SeqCst), MAX_CONNECTIONS);
    });
}

pub fn large_data_arrives_whole_in_both_directions_at_once(suite: &Suite) {
    const SIZE: usize = 32 << 20;
    let mut number = 1_u64;
    let mut sent = Vec::with_capacity(SIZE);
    while sent.len() < SIZE {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sent.extend(number.to_be_bytes());
    }
    let answer: Arc<Vec<u8>> = Arc::new(sent.iter().rev().copied().collect());
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let (got, received) = mpsc::channel();
        let reply = Arc::clone(&answer);
        let service = serve(move |mut stream| {
            let (reply, got) = (Arc::clone(&reply), got.clone());
            async move {
                let (mut read, mut write) = stream.split();
                let mut all = Vec::new();
                let send = async {
                    write.write_all(&reply).await?;
                    write.shutdown().await
                };
                tokio::try_join!(read.read_to_end(&mut all), send)?;
                let _ = got.send(all);
                Ok(())
            }
        })
        .await;
        let port = inside.environment().offer(service).await.unwrap();
        let source = inside.scratch().join("sent");
        fs::write(&source, &sent).unwrap();
        inside
            .environment()
            .copy_to(&source, "/tmp/sent", rollout::environment::CopyMode::Merge)
            .await
            .unwrap();
        let program = r#"
            my $socket = dial();
            if (!fork) {
                open(my $file, "<", "/tmp/sent") or die; my $bytes;
                give($socket, $bytes) while sysread($file, $bytes, 1 << 20);
                shutdown($socket, 1); exit;
            }
            open(my $file, ">", "/tmp/got") or die; my $bytes;
            syswrite($file, $bytes) while sysread($socket, $bytes, 1 << 20);
            wait; die if $?;"#;
        perl(inside, port, program).await;
        assert!(received.recv().unwrap() == sent, "the service received other bytes");
        let FileRead::Content(got) =
            inside.environment().read_file("/tmp/got", 2 * SIZE as u64).await.unwrap()
        else {
            panic!("nothing was received inside")
        };
        assert!(got == *answer, "the inside received other bytes");
    });
}

pub fn each_direction_of_a_connection_can_end_before_the_other(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let service = serve(async |mut stream: TcpStream| {
            let mut all = String::new();
            stream.read_to_string(&mut all).await?;
            stream.write_all(format!("{all} has ended").as_bytes()).await
        })
        .await;
        let port = inside.environment().offer(service).await.unwrap();
        let program = r#"my $socket = dial(); give($socket, "inside"); shutdown($socket, 1); print take($socket, 100)"#;
        assert_eq!(perl(inside, port, program).await, "inside has ended");

        let (got, received) = mpsc::channel();
        let service = serve(move |mut stream| {
            let got = got.clone();
            async move {
                stream.write_all(b"host").await?;
                stream.shutdown().await?;
                let mut all = String::new();
                stream.read_to_string(&mut all).await?;
                let _ = got.send(all);
                Ok(())
            }
        })
        .await;
        let port = inside.environment().offer(service).await.unwrap();
        let program =
            r#"my $socket = dial(); my $all = take($socket, 100); give($socket, "after $all"); close $socket"#;
        perl(inside, port, program).await;
        assert_eq!(received.recv().unwrap(), "after host");
    });
}

pub fn a_slow_reader_on_either_side_holds_up_nothing_else(suite: &Suite) {
    /// Far more than all buffers on the way hold.
    const FLOOD: usize = 256 << 20;
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        let finished = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&finished);
        let flood = serve(move |mut stream: TcpStream| {
            let flag = Arc::clone(&flag);
            async move {
                for _ in 0..FLOOD >> 20 {
                    stream.write_all(&vec![b'f'; 1 << 20]).await?;
                }
                flag.store(true, Ordering::SeqCst);
                Ok(())
            }
        })
        .await;
        let deaf = serve(async |stream: TcpStream| {
            std::future::pending::<()>().await;
            drop(stream);
            Ok(())
        })
        .await;
        let flood = environment.offer(flood).await.unwrap();
        let deaf = environment.offer(deaf).await.unwrap();
        let echo = environment.offer(serve(echo).await).await.unwrap();
        let flooding = format!(
            "alarm 600; my $socket = dial(); $socket->blocking(0); my $sent = 0;
             while ($sent < {FLOOD}) {{ my $count = syswrite($socket, \"f\" x 65536); $sent += $count || 0; sleep 1 unless $count }}"
        );
        let (flooding, unread) = (perl_program(deaf, &flooding), perl_program(flood, "my $socket = dial(); sleep 600"));
        let (one, two) = (["perl", "-e", &flooding], ["perl", "-e", &unread]);
        let slow = async {
            tokio::join!(start(inside, &one, LogWriter::discard()), start(inside, &two, LogWriter::discard()))
        };
        let fast = async {
            let program = r#"
                my $socket = dial();
                for (1..128) { my $all = chr(32 + $_ % 64) x 65536; give($socket, $all); die if take($socket, 65536) ne $all }
                print "fast";"#;
            assert_eq!(perl(inside, echo, program).await, "fast");
            assert_eq!(inside.bash("echo alive").await, "alive\n");
        };
        tokio::select! {
            ended = slow => panic!("the slow connections ended: {ended:?}"),
            () = fast => {}
        }
        assert!(!finished.load(Ordering::SeqCst), "data without a reader was accepted without limit");
    });
}

pub fn connections_and_commands_with_much_output_share_the_way_out(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let port = inside.environment().offer(serve(echo).await).await.unwrap();
        let chatty = start(inside, &["yes", "a line of a command that prints without end"], LogWriter::discard());
        let work = async {
            let program = r#"
                my $socket = dial();
                for (1..200) { give($socket, "question $_\n"); die if take($socket, 9) ne "question "; take($socket, 1 + length $_) }
                print "answered";"#;
            assert_eq!(perl(inside, port, program).await, "answered");
        };
        tokio::select! {
            ended = chatty => panic!("the chatty command ended: {ended:?}"),
            () = work => {}
        }
    });
}

pub fn output_that_is_not_taken_holds_up_neither_connections_nor_commands(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let port = inside.environment().offer(serve(echo).await).await.unwrap();
        // The log is a pipe that is full.
        let (reader, writer) = io::pipe().unwrap();
        let log = LogWriter::new(fs::File::from(std::os::fd::OwnedFd::from(writer)), &Redactor::default());
        let stuck = start(inside, &["yes"], log);
        let work = async {
            for round in 0..20 {
                let line = format!("round-{round}");
                assert_eq!(inside.bash(&ask(port, &line)).await, format!("{line}\n"));
            }
        };
        tokio::select! {
            ended = stuck => panic!("the stuck command ended: {ended:?}"),
            () = work => {}
        }
        // Lets the log end.
        drop(reader);
    });
}

pub fn a_connection_to_a_service_that_refuses_is_reset(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let port = inside.environment().offer(closed).await.unwrap();
        let program = r#"
            my $socket = dial(); my $got = sysread($socket, my $bytes, 1);
            print defined $got ? "an orderly end" : "$!";"#;
        assert_eq!(perl(inside, port, program).await, "Connection reset by peer");
        assert_eq!(inside.bash("echo alive").await, "alive\n");
    });
}

pub fn a_reset_on_one_side_is_not_an_orderly_end_on_the_other(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let (got, received) = mpsc::channel();
        let service = serve(move |mut stream: TcpStream| {
            let got = got.clone();
            async move {
                if stream.read_u8().await? == b'h' {
                    // Unread bytes make this a reset.
                    stream.readable().await?;
                    return Ok(());
                }
                // The inside resets after this, so that nothing is on the way any more.
                stream.write_all(b"x").await?;
                let _ = got.send(stream.read_u8().await.map_err(|error| error.kind()));
                Ok(())
            }
        })
        .await;
        let port = inside.environment().offer(service).await.unwrap();
        let host_resets = r#"
            my $socket = dial(); give($socket, "host"); my $got = sysread($socket, my $bytes, 1);
            print defined $got ? "an orderly end" : "$!";"#;
        assert_eq!(perl(inside, port, host_resets).await, "Connection reset by peer");
        let inside_resets = r#"
            my $socket = dial(); give($socket, "i"); take($socket, 1);
            setsockopt($socket, SOL_SOCKET, SO_LINGER, pack("ii", 1, 0)) or die; close $socket;"#;
        perl(inside, port, inside_resets).await;
        let received = tokio::task::spawn_blocking(move || received.recv()).await.unwrap().unwrap();
        assert_eq!(received, Err(io::ErrorKind::ConnectionReset));
    });
}

pub fn an_offer_outlives_the_processes_inside_and_a_snapshot(suite: &Suite) {
    let key = format!("tunnel{}", std::process::id());
    let has_no_snapshots = suite.lacks(Ability::Snapshots);
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        let port = environment.offer(serve(echo).await).await.unwrap();
        environment.kill_all().await.unwrap();
        assert_eq!(inside.bash(&ask(port, "after-kill")).await, "after-kill\n");
        if has_no_snapshots {
            return;
        }
        for round in ["new-snapshot", "same-snapshot"] {
            environment.snapshot(&key).await.unwrap();
            assert_eq!(inside.bash(&ask(port, round)).await, format!("{round}\n"));
        }
    });
}

pub fn several_services_have_ports_of_their_own(suite: &Suite) {
    suite.inside_alone(TestTask::new("task"), async |inside| {
        for word in ["one", "two", "three"] {
            let service = serve(move |mut stream: TcpStream| async move {
                stream.write_all(format!("{word}\n").as_bytes()).await
            })
            .await;
            let port = inside.environment().offer(service).await.unwrap();
            let said = inside.bash(&format!("cat < /dev/tcp/127.0.0.1/{port}")).await;
            assert_eq!(said, format!("{word}\n"));
        }
    });
}

pub fn a_connection_ends_on_the_host_with_its_environment(suite: &Suite) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let service = listener.local_addr().unwrap();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        stream.write_all(&byte).unwrap();
        let _ = ended.send(match stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        });
    });
    suite.inside_alone(TestTask::new("task"), async |inside| {
        let port = inside.environment().offer(service).await.unwrap();
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} && printf x >&3 && read -r -N 1 byte <&3 && echo $byte
             setsid sleep 1000 >/dev/null 2>&1 &"
        );
        assert_eq!(inside.bash(&script).await, "x\n");
        assert!(end.try_recv().is_err(), "the connection ended before its environment");
    });
    assert!(end.recv().unwrap(), "the connection stayed open");
}
