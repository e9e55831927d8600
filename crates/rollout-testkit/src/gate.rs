//! A gate at which a script inside an environment waits until the test lets it continue.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use crate::job::PATIENCE;

/// A listener on loopback, for environments with the host's network.
pub struct Gate(TcpListener);

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Opens a gate at a free port.
    pub fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("listen on loopback"))
    }

    /// Shell commands that wait at the gate.
    pub fn wait(&self) -> String {
        let port = self.0.local_addr().expect("a listener has an address").port();
        format!("exec 3<>/dev/tcp/127.0.0.1/{port}; echo here >&3; read -r _ <&3; exec 3<&-\n")
    }

    /// Waits until a script has reached the gate.
    #[track_caller]
    pub fn arrival(&self) -> Arrival {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(arrival) = self.next() {
                return arrival;
            }
            assert!(Instant::now() < deadline, "no script reached the gate in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The next script at the gate, if there is one.
    pub(crate) fn next(&self) -> Option<Arrival> {
        self.0.set_nonblocking(true).expect("look for scripts");
        let (mut stream, _) = self.0.accept().ok()?;
        stream.set_nonblocking(false).expect("wait for the script");
        let mut word = [0; 5];
        stream.read_exact(&mut word).expect("read from the script");
        Some(Arrival(stream))
    }
}

/// A waiting script.
pub struct Arrival(TcpStream);

impl Arrival {
    /// Lets it continue.
    pub fn pass(mut self) {
        self.0.write_all(b"go\n").expect("write to the script");
    }

    /// Waits until it has been ended at the gate.
    #[track_caller]
    pub fn ended(mut self) {
        self.0.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
        loop {
            match self.0.read(&mut [0]) {
                Ok(0) => return,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
                // By the end of a child process.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => panic!("the script still waits at the gate: {other:?}"),
            }
        }
    }
}
