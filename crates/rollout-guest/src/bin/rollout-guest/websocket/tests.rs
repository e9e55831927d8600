use proptest::prelude::*;

use super::*;

const TOKEN: &[u8] = b"the-token";

fn request(lines: &[&str]) -> Vec<u8> {
    format!("{}\r\n\r\n", lines.join("\r\n")).into_bytes()
}

const VALID: [&str; 7] = [
    "GET /any HTTP/1.1",
    "Host: x",
    "Upgrade: WebSocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "authorization: bearer the-token",
];

/// The valid request with another line, or without it.
fn changed(from: &str, to: &[&str]) -> Vec<u8> {
    let mut lines = VALID.to_vec();
    let at = lines.iter().position(|line| *line == from).unwrap();
    lines.splice(at..=at, to.iter().copied());
    request(&lines)
}

#[test]
fn a_request_with_the_token_is_accepted_with_the_answer_of_the_standard() {
    let mut input = request(&VALID);
    let whole = input.len();
    input.extend(b"more");
    let Opening::Accepted { response, length } = open(&input, TOKEN) else { panic!("refused") };
    assert_eq!(length, whole);
    let response = String::from_utf8(response).unwrap();
    assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
    // The example of RFC 6455.
    assert!(response.ends_with("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"), "{response}");
}

#[test]
fn every_start_of_a_request_is_incomplete() {
    let input = request(&VALID);
    for length in 0..input.len() {
        assert_eq!(open(&input[..length], TOKEN), Opening::Incomplete, "{length}");
    }
}

#[test]
fn a_request_without_the_exact_token_is_unauthorized() {
    let header = VALID[6];
    for wrong in [
        &["Authorization: Bearer the-tokem"][..],
        &["Authorization: Bearer the-toke"],
        &["Authorization: Bearer the-token2"],
        &["Authorization: Bearer "],
        &["Authorization: Basic the-token"],
        &["Authorization: the-token"],
        &["X-Authorization: Bearer the-token"],
        &[],
    ] {
        assert_eq!(open(&changed(header, wrong), TOKEN), Opening::Refused(UNAUTHORIZED), "{wrong:?}");
    }
    assert_eq!(open(&changed(header, &["Authorization: Bearer "]), b""), Opening::Refused(UNAUTHORIZED));
}

#[test]
fn other_requests_are_refused() {
    for (from, to) in [
        (VALID[0], &["POST / HTTP/1.1"][..]),
        (VALID[0], &["GET / HTTP/1.0"]),
        (VALID[2], &[]),
        (VALID[3], &["Connection: close"]),
        (VALID[4], &["Sec-WebSocket-Version: 8"]),
        (VALID[5], &[]),
        (VALID[5], &[VALID[5], VALID[5]]),
        (VALID[6], &[VALID[6], VALID[6]]),
        (VALID[1], &["no colon"]),
    ] {
        assert_eq!(open(&changed(from, to), TOKEN), Opening::Refused(BAD_REQUEST), "{from} {to:?}");
    }
    assert_eq!(open(&[b'x'; MAX_HEAD], TOKEN), Opening::Refused(BAD_REQUEST));
}

#[test]
fn base64_pads() {
    for (bytes, text) in
        [(&b""[..], ""), (b"f", "Zg=="), (b"fo", "Zm8="), (b"foo", "Zm9v"), (b"\xff\xfe\xfd", "//79")]
    {
        assert_eq!(String::from_utf8(base64(bytes)).unwrap(), text);
    }
}

/// A frame as clients send it.
fn masked(first: u8, mask: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    write_frame(0, data, &mut frame);
    frame[0] = first;
    frame[1] |= MASKED;
    let head = frame.len() - data.len();
    frame.truncate(head);
    frame.extend(mask);
    frame.extend(data.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[test]
fn frames_that_break_the_protocol_are_refused() {
    let mask = [1, 2, 3, 4];
    let mut unmasked = Vec::new();
    binary(b"data", &mut unmasked);
    for frame in [
        unmasked,
        masked(FIN | 1, mask, b"text"),
        masked(FIN | 3, mask, b"unknown"),
        masked(FIN | 0x40 | BINARY, mask, b"compressed"),
        masked(PING, mask, b"in parts"),
        masked(FIN | PING, mask, &[0; 126]),
        masked(FIN | CLOSE, mask, &[0; 70_000]),
    ] {
        let decoded = FrameReader::default().decode(&frame, &mut Vec::new(), &mut Vec::new());
        assert_eq!(decoded, Err(Malformed), "{:?}", &frame[..2]);
    }
}

#[test]
fn a_huge_length_takes_no_memory() {
    let mut reader = FrameReader::default();
    let mut data = Vec::new();
    let head = [&[FIN | BINARY, MASKED | 127][..], &u64::MAX.to_be_bytes(), &[0; 4], b"abc"].concat();
    reader.decode(&head, &mut data, &mut Vec::new()).unwrap();
    assert_eq!(data, b"abc");
}

#[derive(Debug, Clone)]
enum Sent {
    Data { data: Vec<u8>, last: bool, follows: bool },
    Ping(Vec<u8>),
    Pong,
    Close,
}

fn sent() -> impl Strategy<Value = Sent> {
    let data = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        (65_530_usize..65_540).prop_map(|length| vec![b'x'; length]),
    ];
    prop_oneof![
        4 => (data, any::<bool>(), any::<bool>())
            .prop_map(|(data, last, follows)| Sent::Data { data, last, follows }),
        1 => prop::collection::vec(any::<u8>(), 0..=MAX_CONTROL).prop_map(Sent::Ping),
        1 => Just(Sent::Pong),
        1 => Just(Sent::Close),
    ]
}

proptest! {
    #[test]
    fn what_a_client_sends_arrives_however_it_is_cut(
        frames in prop::collection::vec((sent(), any::<[u8; 4]>()), 0..12),
        cuts in prop::collection::vec(1_usize..5000, 1..20),
    ) {
        let (mut bytes, mut data, mut controls) = (Vec::new(), Vec::new(), Vec::new());
        for (sent, mask) in frames {
            match sent {
                Sent::Data { data: part, last, follows } => {
                    let kind = if follows { CONTINUATION } else { BINARY };
                    bytes.extend(masked(kind | if last { FIN } else { 0 }, mask, &part));
                    data.extend(part);
                }
                Sent::Ping(part) => {
                    bytes.extend(masked(FIN | PING, mask, &part));
                    controls.push(Control::Ping(part));
                }
                Sent::Pong => {
                    bytes.extend(masked(FIN | PONG, mask, b"any"));
                    controls.push(Control::Pong);
                }
                Sent::Close => {
                    bytes.extend(masked(FIN | CLOSE, mask, b""));
                    controls.push(Control::Close);
                }
            }
        }
        let mut reader = FrameReader::default();
        let (mut got, mut seen) = (Vec::new(), Vec::new());
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, after) = rest.split_at((*cut).min(rest.len()));
            reader.decode(part, &mut got, &mut seen).unwrap();
            rest = after;
        }
        prop_assert!(got == data);
        prop_assert_eq!(seen, controls);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut data = Vec::new();
        let _ = FrameReader::default().decode(&bytes, &mut data, &mut Vec::new());
        prop_assert!(data.len() <= bytes.len());
        let _ = open(&bytes, TOKEN);
    }
}
