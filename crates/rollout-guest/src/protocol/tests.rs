//! Properties of the protocol.

use std::io;

use proptest::prelude::*;

use super::*;
use crate::wire::read_frame;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        (bytes(), any::<u32>()).prop_map(|(name, mode)| Item::Enter { name, mode }),
        Just(Item::Leave),
        (bytes(), any::<u32>(), any::<i64>(), any::<u32>())
            .prop_map(|(name, mode, seconds, nanoseconds)| Item::File { name, mode, seconds, nanoseconds }),
        bytes().prop_map(Item::Data),
        (bytes(), bytes()).prop_map(|(name, target)| Item::Link { name, target }),
    ]
}

fn step() -> impl Strategy<Value = TunnelStep> {
    prop_oneof![
        Just(TunnelStep::Open),
        prop::collection::vec(any::<u8>(), 1..40).prop_map(TunnelStep::Data),
        Just(TunnelStep::End),
        any::<u32>().prop_map(TunnelStep::Credit),
        Just(TunnelStep::Close),
    ]
}

fn request() -> impl Strategy<Value = GuestRequest> {
    let exec = (
        prop::collection::vec(any::<String>(), 0..4),
        prop::collection::vec(any::<(String, String)>(), 0..4),
        any::<Option<String>>(),
        any::<Option<u64>>(),
    );
    prop_oneof![
        exec.prop_map(|(argv, env, user, deadline)| GuestRequest::Exec { argv, env, user, deadline }),
        Just(GuestRequest::Cancel),
        any::<(String, bool, bool)>().prop_map(|(target, file, replace)| GuestRequest::Put {
            target,
            file,
            replace
        }),
        item().prop_map(GuestRequest::Item),
        Just(GuestRequest::PutEnd),
        any::<(String, Option<String>, u64, u64, u64)>().prop_map(
            |(source, first, bytes, entries, file_bytes)| GuestRequest::Get {
                source,
                first,
                limits: CopyLimits { bytes, entries, file_bytes }
            }
        ),
        any::<(String, u64)>().prop_map(|(path, max_bytes)| GuestRequest::Read { path, max_bytes }),
        (prop::collection::vec(any::<String>(), 0..4), any::<bool>())
            .prop_map(|(paths, empty)| GuestRequest::MakeDirs { paths, empty }),
        any::<(String, String)>().prop_map(|(target, link)| GuestRequest::Link { target, link }),
        Just(GuestRequest::Survivors),
        Just(GuestRequest::KillAll),
        Just(GuestRequest::Stay),
        Just(GuestRequest::Hold),
        (any::<String>(), prop::collection::vec(any::<String>(), 0..4))
            .prop_map(|(tree, files)| GuestRequest::Watch { tree, files }),
        Just(GuestRequest::Changes),
        Just(GuestRequest::Offer),
        any::<u32>().prop_map(GuestRequest::Taken),
        (any::<u32>(), step()).prop_map(|(connection, step)| GuestRequest::Tunnel { connection, step }),
    ]
}

fn reply() -> impl Strategy<Value = GuestReply> {
    let stream = || prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    let ending = prop_oneof![
        any::<i32>().prop_map(Ending::Code),
        any::<i32>().prop_map(Ending::Signal),
        Just(Ending::TimedOut)
    ];
    let found = prop_oneof![
        Just(FileLookup::File(())),
        Just(FileLookup::Missing),
        Just(FileLookup::NotRegular),
        any::<u64>().prop_map(FileLookup::TooLarge)
    ];
    prop_oneof![
        (any::<u32>(), any::<bool>()).prop_map(|(version, below)| GuestReply::Hello {
            version,
            scope: if below { KillScope::Descendants } else { KillScope::Namespace },
        }),
        (stream(), bytes()).prop_map(|(stream, bytes)| GuestReply::Output { stream, bytes }),
        (ending, any::<bool>()).prop_map(|(ending, oom_killed)| GuestReply::Exited { ending, oom_killed }),
        item().prop_map(GuestReply::Item),
        any::<(String, String)>().prop_map(|(path, reason)| GuestReply::Skipped { path, reason }),
        found.prop_map(GuestReply::Found),
        any::<String>().prop_map(GuestReply::Process),
        (any::<String>(), prop::sample::select(&FileChangeKind::ALL), any::<u32>())
            .prop_map(|(path, kind, count)| GuestReply::Changed { path, kind, count }),
        Just(GuestReply::Done),
        any::<String>().prop_map(GuestReply::Failed),
        any::<u16>().prop_map(|port| GuestReply::Offered { port }),
        (any::<u32>(), step()).prop_map(|(connection, step)| GuestReply::Tunnel { connection, step }),
    ]
}

proptest! {
    #[test]
    fn a_request_is_read_as_it_was_written(id: u32, request in request()) {
        let frame = encode_request(id, &request);
        let content = read_frame(&frame[..], MAX_REQUEST).unwrap().unwrap();
        prop_assert_eq!(decode_request(&content), Ok((id, request)));
    }

    #[test]
    fn a_reply_is_read_as_it_was_written(id: u32, reply in reply()) {
        let frame = encode_reply(id, &reply);
        let content = read_frame(&frame[..], MAX_REPLY).unwrap().unwrap();
        prop_assert_eq!(decode_reply(&content), Ok((id, reply)));
    }

    #[test]
    fn a_truncated_message_is_rejected(request in request(), cut in 1_usize..8) {
        let frame = encode_request(7, &request);
        let end = frame.len().saturating_sub(cut).max(4);
        prop_assert_eq!(decode_request(&frame[4..end]), Err(Malformed));
        prop_assert!(read_frame(&frame[..end], MAX_REQUEST).is_err());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(content in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = decode_request(&content);
        let _ = decode_reply(&content);
    }
}

#[test]
fn a_frame_that_is_too_long_is_rejected_before_it_is_read() {
    let mut frame = (MAX_REPLY as u32 + 1).to_le_bytes().to_vec();
    frame.extend(vec![0; MAX_REPLY + 1]);
    assert_eq!(read_frame(&frame[..], MAX_REPLY).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn the_end_of_the_stream_is_distinguished_from_a_truncated_frame() {
    assert!(read_frame(&b""[..], MAX_REPLY).unwrap().is_none());
    assert!(read_frame(&b"\x01\x00"[..], MAX_REPLY).is_err());
}

#[test]
fn a_list_with_a_wrong_count_is_rejected() {
    let mut content = 7_u32.to_le_bytes().to_vec();
    content.push(1);
    content.extend(u32::MAX.to_le_bytes());
    assert_eq!(decode_request(&content), Err(Malformed));
}

#[test]
fn data_of_a_connection_without_bytes_is_rejected() {
    // Its end is another step, and steps without bytes could be sent without credit.
    let empty = GuestReply::Tunnel { connection: 1, step: TunnelStep::Data(Vec::new()) };
    assert_eq!(decode_reply(&encode_reply(7, &empty)[4..]), Err(Malformed));
}
