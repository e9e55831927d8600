use proptest::prelude::*;

use super::*;

/// A side of a session, with what its sender has left to send and what its receiver got.
#[derive(Default)]
struct Side {
    state: SessionState,
    to_send: Vec<u8>,
    /// How many bytes are added to the stream at a time.
    step: usize,
    got: Vec<u8>,
    /// Bytes that are on the way to the other side.
    on_the_way: VecDeque<u8>,
}

impl Side {
    fn new(to_send: Vec<u8>, step: usize) -> Self {
        Self { to_send, step, ..Self::default() }
    }

    fn work(&mut self) {
        let count = self.to_send.len().min(self.step).min(self.state.room());
        let rest = self.to_send.split_off(count);
        self.state.send(&std::mem::replace(&mut self.to_send, rest));
        let mut output = Vec::new();
        self.state.encode(&mut output);
        self.on_the_way.extend(output);
    }

    fn is_done(&self) -> bool {
        self.to_send.is_empty() && self.state.unacknowledged.is_empty() && self.on_the_way.is_empty()
    }
}

/// A connection, which is cut after a number of bytes in each direction. Bytes before the cut arrive in parts.
#[derive(Debug, Clone, Copy)]
struct Cut {
    after: usize,
    part: usize,
}

/// Passes some bytes on; `false` if the connection is cut.
fn pass(from: &mut Side, to: &mut Side, left: &mut Option<usize>, part: usize) -> bool {
    let allowed = left.unwrap_or(usize::MAX);
    let count = from.on_the_way.len().min(part).min(allowed);
    let bytes: Vec<u8> = from.on_the_way.drain(..count).collect();
    if let Some(left) = left {
        *left -= count;
    }
    to.state.decode(&bytes, &mut to.got).unwrap();
    *left != Some(0)
}

/// Runs a session over connections with these cuts, and then over one that lasts.
fn run(mut host: Side, mut guest: Side, cuts: &[Cut]) -> (Vec<u8>, Vec<u8>) {
    let mut cuts = cuts.iter();
    loop {
        let cut = cuts.next();
        let part = cut.map_or(4096, |cut| cut.part);
        let (mut to_guest, mut to_host) = (cut.map(|cut| cut.after), cut.map(|cut| cut.after));
        host.on_the_way.clear();
        guest.on_the_way.clear();
        // The messages at the start of a connection may be cut off as well.
        let hello = SessionHello { token: [7; 16], received: host.state.received() };
        let hello = SessionHello::decode(&hello.encode()).unwrap();
        if to_guest.is_some_and(|left| left < SESSION_HELLO) {
            continue;
        }
        guest.state.resume(hello.received).unwrap();
        let welcome = SessionWelcome { received: guest.state.received() };
        let welcome = SessionWelcome::decode(&welcome.encode()).unwrap();
        if to_host.is_some_and(|left| left < SESSION_WELCOME) {
            continue;
        }
        host.state.resume(welcome.received).unwrap();
        for left in [&mut to_guest, &mut to_host].into_iter().flatten() {
            *left -= SESSION_HELLO.min(*left);
        }
        loop {
            host.work();
            guest.work();
            let is_open = pass(&mut host, &mut guest, &mut to_guest, part)
                && pass(&mut guest, &mut host, &mut to_host, part);
            if host.is_done() && guest.is_done() {
                return (host.got, guest.got);
            }
            if !is_open {
                break;
            }
        }
    }
}

fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn a_cut_at_any_byte_loses_and_repeats_nothing() {
    let (to_guest, to_host) = (bytes(300, 1), bytes(250, 2));
    for after in 0..700 {
        for part in [1, 7, 4096] {
            let host = Side::new(to_guest.clone(), 40);
            let guest = Side::new(to_host.clone(), 30);
            let (at_host, at_guest) =
                run(host, guest, &[Cut { after, part }, Cut { after: after / 2, part }]);
            assert!(at_host == to_host && at_guest == to_guest, "cut after {after} bytes in parts of {part}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_sequence_of_cuts_loses_and_repeats_nothing(
        sizes in (0..200_000_usize, 0..200_000_usize),
        steps in (1..100_000_usize, 1..100_000_usize),
        cuts in proptest::collection::vec((0..60_000_usize, 1..70_000_usize), 0..12),
    ) {
        let (to_guest, to_host) = (bytes(sizes.0, 3), bytes(sizes.1, 4));
        let cuts: Vec<Cut> = cuts.into_iter().map(|(after, part)| Cut { after, part }).collect();
        let (at_host, at_guest) =
            run(Side::new(to_guest.clone(), steps.0), Side::new(to_host.clone(), steps.1), &cuts);
        prop_assert!(at_host == to_host, "the host got other bytes");
        prop_assert!(at_guest == to_guest, "the guest got other bytes");
    }

    #[test]
    fn invalid_bytes_are_an_error_or_wait_for_more(
        input in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut state = SessionState::default();
        state.send(&[1; 100]);
        state.encode(&mut Vec::new());
        let mut got = Vec::new();
        let _ = state.decode(&input, &mut got);
        prop_assert!(got.len() <= input.len());
    }
}

#[test]
fn a_side_keeps_no_more_than_the_window() {
    let mut state = SessionState::default();
    state.send(&vec![0; SESSION_WINDOW]);
    assert_eq!(state.room(), 0);
    let mut output = Vec::new();
    for _ in 0..SESSION_WINDOW / MAX_OUTPUT + 1 {
        output.clear();
        state.encode(&mut output);
    }
    let mut ack = vec![ACK];
    ack.extend(1000_u64.to_le_bytes());
    state.decode(&ack, &mut Vec::new()).unwrap();
    assert_eq!(state.room(), 1000);
}

#[test]
fn an_acknowledgement_of_bytes_that_were_not_sent_is_an_error() {
    let mut state = SessionState::default();
    state.send(b"12345");
    let mut ack = vec![ACK];
    ack.extend(1_u64.to_le_bytes());
    assert!(state.decode(&ack, &mut Vec::new()).is_err());
    assert!(state.resume(6).is_err());
    assert!(state.resume(3).is_ok());
    assert!(state.resume(2).is_err());
}

#[test]
fn the_end_comes_after_all_data_and_again_after_a_lost_connection() {
    let (mut host, mut guest) = (SessionState::default(), SessionState::default());
    host.send(b"last words");
    host.end();
    let mut lost = Vec::new();
    host.encode(&mut lost);
    assert!(host.has_sent_end());
    host.resume(guest.received()).unwrap();
    assert!(!host.has_sent_end());
    let (mut output, mut got) = (Vec::new(), Vec::new());
    host.encode(&mut output);
    guest.decode(&output, &mut got).unwrap();
    assert_eq!(got, b"last words");
    assert!(guest.has_ended());
}

#[test]
fn a_ping_is_answered() {
    let (mut host, mut guest) = (SessionState::default(), SessionState::default());
    host.ping();
    let mut output = Vec::new();
    host.encode(&mut output);
    guest.decode(&output, &mut Vec::new()).unwrap();
    let mut answer = Vec::new();
    guest.encode(&mut answer);
    assert!(!answer.is_empty());
    host.decode(&answer, &mut Vec::new()).unwrap();
}

#[test]
fn messages_of_another_version_are_rejected() {
    let mut hello = SessionHello { token: [1; 16], received: 5 }.encode();
    assert_eq!(SessionHello::decode(&hello), Ok(SessionHello { token: [1; 16], received: 5 }));
    hello[4] += 1;
    assert!(SessionHello::decode(&hello).is_err());
    let mut welcome = SessionWelcome { received: 5 }.encode();
    welcome[0] += 1;
    assert!(SessionWelcome::decode(&welcome).is_err());
}
