//! Commands in an environment, with calls to the environment itself.
#![expect(missing_docs, reason = "the names of the cases describe them")]
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::{fs, time::Duration};

use rollout::{
    environment::{CommandRole, EnvironmentError, Exec, Outcome},
    record::{log::LogWriter, redact::Redactor},
};

use super::{Ability, Suite, suite::on_terminal};
use crate::TestTask;

pub fn codes_and_signals_are_distinguished(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        for (script, expected) in [
            ("exit 0", Outcome::Code(0)),
            ("exit 255", Outcome::Code(255)),
            ("exit 137", Outcome::Code(137)),
            ("kill -KILL $$", Outcome::Signal(9)),
            ("kill -TERM $$", Outcome::Signal(15)),
        ] {
            let (exit, _) = inside.exec(&["bash", "-c", script], None).await.unwrap();
            assert_eq!((exit.outcome, exit.oom_killed), (expected, false), "{script}");
        }
    });
}

pub fn output_is_complete_when_a_command_has_ended(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let said = inside.bash("for i in {1..20000}; do echo line $i; done; echo wrong >&2").await;
        let expected: String = (1..=20000).map(|n| format!("line {n}\n")).collect();
        assert!(said == expected + "wrong\n", "{} bytes came", said.len());
    });
}

pub fn arguments_and_variables_arrive_as_they_are(suite: &Suite) {
    suite.inside(
        TestTask::new("task").dockerfile("FROM test\nWORKDIR /app\nENV KEPT=image CHANGED=image\n"),
        async |inside| {
            let odd = "a b\n'\"$HOME\\ünï *";
            let script = "printf '%s|' \"$0\" \"$1\" \"$ODD\" \"$KEPT\" \"$CHANGED\" \"$EMPTY\"";
            let file = inside.scratch().join("said");
            let env = [("ODD", odd), ("CHANGED", "command"), ("EMPTY", "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()));
            let command = Exec {
                role: CommandRole::Agent,
                argv: &["bash", "-c", script, odd, ""],
                env: &env,
                deadline: None,
                stdout: LogWriter::new(fs::File::create(&file).unwrap(), &Redactor::default()),
                stderr: LogWriter::discard(),
            };
            inside.environment().exec(command).await.unwrap();
            assert_eq!(fs::read_to_string(file).unwrap(), format!("{odd}||{odd}|image|command||"));
        },
    );
}

pub fn a_command_has_no_input(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        assert_eq!(inside.bash("cat; read -r line || echo none").await, "none\n");
    });
}

pub fn a_program_that_is_missing_or_cannot_run_is_an_error_that_names_it(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside.bash("echo text > /app/not-executable; mkdir /app/a-directory").await;
        for program in ["no-such-program", "/app/no-such-file", "/app/not-executable", "/app/a-directory"] {
            let ended = inside.exec(&[program], None).await;
            let Err(EnvironmentError::Command(words)) = ended else { panic!("{program}: {ended:?}") };
            assert!(words.contains(program), "{words}");
        }
        assert_eq!(inside.bash("echo alive").await, "alive\n");
    });
}

pub fn a_deadline_kills_detached_grandchildren_and_spares_older_processes(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside.bash("setsid sleep 1001 > /dev/null 2>&1 &").await;
        let daemon = "setsid bash -c '(setsid sleep 1002 &) ; (trap \"\" TERM HUP INT; exec -a 1003 sleep 600) & exec sleep 1004' & \
                      disown -a; while ! grep -qxz '100[2]' /proc/[0-9]*/cmdline 2>/dev/null; do :; done; sleep 1005";
        let (exit, _) = inside.exec(&["bash", "-c", daemon], Some(Duration::from_secs(2))).await.unwrap();
        assert_eq!(exit.outcome, Outcome::TimedOut);
        let survivors = inside.environment().survivors().await.unwrap();
        assert!(matches!(&survivors[..], [one] if one.contains("sleep 1001")), "{survivors:?}");
    });
}

pub fn a_deadline_does_not_wait_for_processes_that_ignore_signals(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let stubborn = "trap '' TERM INT HUP QUIT; while :; do sleep 1; done";
        let (exit, _) =
            inside.exec(&["bash", "-c", stubborn], Some(Duration::from_millis(500))).await.unwrap();
        assert_eq!(exit.outcome, Outcome::TimedOut);
        assert_eq!(inside.environment().survivors().await.unwrap(), Vec::<String>::new());
    });
}

pub fn survivors_are_listed_and_all_of_them_can_be_ended(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        let environment = inside.environment();
        assert_eq!(environment.survivors().await.unwrap(), Vec::<String>::new());
        inside
            .bash(
                "setsid sleep 1001 > /dev/null 2>&1 & (trap '' TERM; sleep 1002) > /dev/null 2>&1 &
                 for pattern in '100[1]' '100[2]'; do
                     until grep -qxz \"$pattern\" /proc/[0-9]*/cmdline 2> /dev/null; do :; done
                 done",
            )
            .await;
        let survivors = environment.survivors().await.unwrap();
        for command in ["sleep 1001", "sleep 1002"] {
            assert!(survivors.iter().any(|survivor| survivor.contains(command)), "{survivors:?}");
        }
        environment.kill_all().await.unwrap();
        assert_eq!(environment.survivors().await.unwrap(), Vec::<String>::new());
        assert_eq!(inside.bash("echo alive").await, "alive\n");
    });
}

pub fn orphans_that_end_leave_no_trace(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        inside.bash("for i in {1..300}; do (true &) ; done").await;
        let running = "grep -qz '{1..30[0]}' /proc/[0-9]*/cmdline 2>/dev/null";
        let count = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '";
        // The last ones may still run, and their reaper needs a moment.
        let wait = format!("while {running}; do :; done; until [ $({count}) = 0 ]; do :; done; echo gone");
        let gone = inside.bash(&wait).await;
        assert_eq!(gone, "gone\n");
        assert_eq!(inside.environment().survivors().await.unwrap(), Vec::<String>::new());
    });
}

pub fn commands_run_side_by_side(suite: &Suite) {
    suite.inside(TestTask::new("task"), async |inside| {
        // Each waits for the other; run one after the other they would never end.
        let wait =
            |mine: &str, other: &str| format!("mkfifo /tmp/{mine}; until [ -p /tmp/{other} ]; do :; done");
        let (one, two) = (wait("one", "two"), wait("two", "one"));
        let run = async |script: &str| {
            let (stdout, stderr) = (LogWriter::discard(), LogWriter::discard());
            let command = Exec {
                role: CommandRole::Agent,
                argv: &["bash", "-c", script],
                env: &[],
                deadline: None,
                stdout,
                stderr,
            };
            inside.environment().exec(command).await.unwrap().outcome
        };
        let ends = tokio::join!(run(&one), run(&two));
        assert_eq!(ends, (Outcome::Code(0), Outcome::Code(0)));
    });
}

pub fn a_user_can_open_a_terminal(suite: &Suite) {
    if suite.lacks(Ability::Terminals) {
        return;
    }
    suite.inside(TestTask::new("task"), async |inside| {
        let script =
            "[ -t 0 ] && [ -t 1 ] && read -r line && echo got $line in $PWD on ${TERM:-nothing}; exit 3";
        let (exit, shown) = on_terminal(inside.environment(), &["bash", "-c", script], "hello\n").await;
        assert_eq!(exit.outcome, Outcome::Code(3));
        assert!(shown.contains("got hello in /app on xterm-256color"), "{shown:?}");
    });
}
