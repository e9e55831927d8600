//! What goes wrong at the hub, and what comes of it.

use std::error::Error;

use rollout::hub::{Hub, HubError, Push};
use rollout_testkit::{Fault, HubServer, Trouble};
use serde_json::json;

use super::{REPO, check, files, hub, push, requests};

/// An error with its causes, as people read it.
fn message_of(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[tokio::test]
async fn a_wrong_token_is_reported_once_and_not_retried() {
    let (server, dir) = (HubServer::start(), files());
    let hub = Hub::new(server.url(), "hf_wrongwrongwrong").unwrap();
    let push = Push::directory(REPO.parse().unwrap(), dir.path()).await.unwrap();
    let error = hub.push(&push, &mut |_| {}).await.unwrap_err();
    // The server repeats the token in its answer.
    insta::assert_snapshot!(message_of(&error), @"cannot read the user of the token: the hub rejected the token: Invalid credentials: Bearer [redacted]");
    assert!(!format!("{error:?}").contains("hf_wrong"), "{error:?}");
    assert_eq!(error.hint(), Some("check that HF_TOKEN is valid and has write access to the dataset"));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn passing_troubles_are_waited_out() {
    for (on, trouble) in [
        ("whoami", Trouble::Status(429, Some(0))),
        ("/create", Trouble::Status(503, None)),
        ("/preupload/", Trouble::Status(500, None)),
        ("/batch", Trouble::CutAnswer),
        ("storage PUT", Trouble::CutRequest),
        ("storage PUT", Trouble::Status(500, None)),
        ("storage PUT", Trouble::CutAnswer),
        ("/verify", Trouble::Status(502, None)),
        ("/commit/", Trouble::CutRequest),
        ("/commit/", Trouble::Status(504, None)),
    ] {
        let (server, dir) = (HubServer::start().fault(Fault::once(on, trouble.clone())), files());
        push(&server, REPO, dir.path()).await.unwrap();
        check(&server, REPO, dir.path());
        assert_eq!(requests(&server, on), 2, "{on} {trouble:?}");
        assert_eq!(server.commits(REPO).len(), 2, "{on} {trouble:?}");
    }
}

#[tokio::test]
async fn a_part_that_broke_off_is_sent_again_by_itself() {
    let server = HubServer::start().parts_of(1000).fault(Fault::once("part=2", Trouble::CutRequest));
    let dir = files();
    push(&server, REPO, dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
    assert_eq!(requests(&server, "storage PUT"), 4);
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_leaves_the_same_files() {
    let (server, dir) = (HubServer::start().fault(Fault::once("/commit/", Trouble::CutAnswer)), files());
    push(&server, REPO, dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
}

#[tokio::test]
async fn a_hub_that_wants_hours_of_rest_is_not_waited_for() {
    let (server, dir) =
        (HubServer::start().fault(Fault::once("/commit/", Trouble::Status(429, Some(3600)))), files());
    let error = push(&server, REPO, dir.path()).await.unwrap_err();
    insta::assert_snapshot!(message_of(&error), @"cannot commit to tester/results: the hub asks to retry in 3600 s");
    // What has arrived is not sent again.
    push(&server, REPO, dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
    assert_eq!(requests(&server, "storage PUT"), 1);
}

#[tokio::test]
async fn a_rejection_is_reported_with_the_message_of_the_hub_and_not_retried() {
    let (server, dir) =
        (HubServer::start().fault(Fault::once("/commit/", Trouble::Status(422, None))), files());
    let error = push(&server, REPO, dir.path()).await.unwrap_err();
    insta::assert_snapshot!(message_of(&error), @"cannot commit to tester/results: the hub answered with 422 Unprocessable Entity: the test refuses this");
    assert_eq!(requests(&server, "/commit/"), 1);
}

#[tokio::test]
async fn a_token_that_may_write_and_make_nothing_is_enough_for_a_dataset_that_is_there() {
    let dir = files();
    let refused = HubServer::start().fault(Fault::once("/create", Trouble::Status(403, None)));
    let error = push(&refused, REPO, dir.path()).await.unwrap_err();
    assert!(matches!(error, HubError::Unauthorized { .. }), "{error}");
    push(&refused, REPO, dir.path()).await.unwrap();
    let server = HubServer::start().fault(Fault::once("/commit/", Trouble::Status(422, None)));
    push(&server, REPO, dir.path()).await.unwrap_err();
    let server = server.fault(Fault::once("/create", Trouble::Status(403, None)));
    push(&server, REPO, dir.path()).await.unwrap();
    check(&server, REPO, dir.path());
}

#[tokio::test]
async fn redirects_are_followed_on_the_hub_and_nowhere_else() {
    let other = HubServer::start();
    let dir = files();
    let server = HubServer::start()
        .fault(Fault::once("whoami", Trouble::Redirect(format!("{}/api/whoami-v2", other.url()))));
    let error = push(&server, REPO, dir.path()).await.unwrap_err();
    assert!(matches!(&error, HubError::Elsewhere { to, .. } if *to == other.url()), "{error}");
    assert_eq!(other.requests(), [""; 0]);

    let moved =
        HubServer::start().fault(Fault::once("whoami", Trouble::Redirect("/api/whoami-v2?moved".to_owned())));
    push(&moved, REPO, dir.path()).await.unwrap();
    check(&moved, REPO, dir.path());
}

#[tokio::test(start_paused = true)]
async fn a_hub_that_is_not_there_is_tried_a_few_times() {
    // A closed port, because its listener was dropped.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hub = Hub::new(&format!("http://127.0.0.1:{port}"), "hf_x").unwrap();
    let error = hub.whoami().await.unwrap_err();
    assert!(matches!(error, HubError::Unreachable { tries: 6, .. }), "{error}");
}

#[tokio::test]
async fn a_malformed_answer_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("api")).unwrap();
    std::fs::write(dir.path().join("api/whoami-v2"), "<html>").unwrap();
    let server = rollout_testkit::FileServer::new(dir.path());
    let hub = Hub::new(server.url("").trim_end_matches('/'), "hf_x").unwrap();
    let error = hub.whoami().await.unwrap_err();
    insta::assert_snapshot!(message_of(&error), @"cannot read the user of the token: invalid answer of the hub: expected value at line 1 column 1");
}

#[tokio::test]
async fn a_user_name_with_a_path_is_rejected() {
    for name in ["me\u{1b}[31m", "../other", "a/b", ""] {
        let answer = json!({"type": "user", "name": name, "orgs": []});
        let server = HubServer::start().fault(Fault::once("whoami", Trouble::Answer(answer)));
        let error = hub(&server).whoami().await.unwrap_err();
        insta::allow_duplicates! {
            insta::assert_snapshot!(message_of(&error), @"cannot read the user of the token: invalid answer of the hub: an invalid user name");
        }
    }
}

#[tokio::test]
async fn a_large_file_that_the_hub_passes_over_is_not_committed() {
    let server = HubServer::start()
        .fault(Fault::once("objects/batch", Trouble::Answer(json!({"transfer": "basic", "objects": []}))));
    let error = push(&server, REPO, files().path()).await.unwrap_err();
    assert!(
        matches!(&error, HubError::Strange { what, .. } if what.starts_with("no upload URL for ")),
        "{error}"
    );
    assert_eq!(server.commits(REPO), ["initial commit"]);
}
