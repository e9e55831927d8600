//! What is done at the end of a rollout, however it comes.

use std::time::Duration;

use async_trait::async_trait;
use rollout::model::{
    Cleanup, Error, ErrorKind, Halt, Interaction, Limits, MessageList, Messages, State, rollout,
};
use rollout_testkit::{Hold, ModelReply, ModelServer, long_enough_async};
use tokio_util::sync::CancellationToken;

use super::{Notes, chain, input, model, run, said, stop_condition, try_run};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    None,
    Setup,
    PanicInAnswer,
    PanicInRender,
    Render,
    Cleanup,
    PanicInCleanup,
}

/// Takes two turns and has three cleanups, which write down that they ran.
struct Tidy(Notes, Trouble);

#[async_trait]
impl Interaction for Tidy {
    fn max_turns(&self) -> Option<u32> {
        Some(2)
    }

    fn cleanups(&self) -> Vec<Cleanup> {
        let named = |name: &'static str, trouble: Trouble| {
            let notes = self.0.clone();
            Cleanup::new(name, async move |state| {
                tokio::task::yield_now().await;
                let words = state.completion.as_deref().map(said);
                notes.add(format!("{name} after {:?}: {words:?}", state.stop_condition));
                match trouble {
                    Trouble::Cleanup => Err(Error::new(ErrorKind::Sandbox, "it does not go away")),
                    Trouble::PanicInCleanup => panic!("lost the broom"),
                    _ => Ok(()),
                }
            })
        };
        vec![
            named("late", Trouble::None).priority(-1),
            named("first", self.1).priority(5),
            named("second", Trouble::None),
        ]
    }

    async fn setup_state(&self, _state: &mut State) -> Result<(), Error> {
        match self.1 {
            Trouble::Setup => Err(Error::new(ErrorKind::Infra, "no room")),
            _ => Ok(()),
        }
    }

    async fn env_response(&self, _messages: &MessageList, _state: &mut State) -> Result<Messages, Error> {
        assert!(self.1 != Trouble::PanicInAnswer, "speechless");
        Ok(Messages::new())
    }

    async fn render_completion(&self, state: &mut State) -> Result<(), Error> {
        assert!(self.1 != Trouble::PanicInRender, "no paper");
        if self.1 == Trouble::Render {
            return Err(Error::new(ErrorKind::Any, "no ink"));
        }
        state.completion = Some(state.conversation_after_prompt());
        Ok(())
    }
}

/// The state of a rollout with this trouble, and the names of the cleanups that ran, in their order.
async fn tidied(trouble: Trouble, server: &ModelServer) -> (State, Vec<String>) {
    let notes = Notes::default();
    let state = run(&Tidy(notes.clone(), trouble), server).await;
    (state, names(&notes))
}

fn names(notes: &Notes) -> Vec<String> {
    notes.all().iter().filter_map(|note| Some(note.split_once(' ')?.0.to_owned())).collect()
}

const ALL: [&str; 3] = ["first", "second", "late"];

#[tokio::test]
async fn cleanups_run_by_priority_after_the_stop_and_see_the_completion() {
    let notes = Notes::default();
    run(&Tidy(notes.clone(), Trouble::None), &ModelServer::arithmetic()).await;
    assert_eq!(names(&notes), ALL);
    let expected = r#"first after Some("max_turns_reached"): Some(["assistant: 4", "#;
    assert!(notes.all()[0].starts_with(expected), "{:?}", notes.all());
}

#[tokio::test]
async fn cleanups_run_after_errors() {
    let (state, ran) = tidied(Trouble::Setup, &ModelServer::arithmetic()).await;
    assert_eq!((chain(&state.error).as_str(), ran), ("InfraError", ALL.map(str::to_owned).to_vec()));
    let (state, ran) = tidied(Trouble::None, &ModelServer::always(ModelReply::error(400, "no"))).await;
    assert_eq!((stop_condition(&state), ran.len()), ("has_error", 3));
}

#[tokio::test]
async fn a_failed_cleanup_is_recorded_and_the_rollout_kept() {
    for (trouble, expected) in [
        (Trouble::Cleanup, "SandboxError -> SandboxError"),
        (Trouble::PanicInCleanup, "Error -> Error -> Panic"),
    ] {
        let (state, ran) = tidied(trouble, &ModelServer::arithmetic()).await;
        assert_eq!((&state.error, ran), (&None, ALL.map(str::to_owned).to_vec()));
        assert_eq!(stop_condition(&state), "max_turns_reached");
        let [failed] = &state.cleanup_errors[..] else { panic!("{:?}", state.cleanup_errors) };
        assert_eq!(failed.chain(), expected);
        assert!(failed.to_string().starts_with("the cleanup `"), "{failed}");
    }
}

#[tokio::test]
async fn a_cleanup_that_fails_after_an_error_leaves_the_error() {
    let server = ModelServer::always(ModelReply::error(400, "no"));
    let (state, _) = tidied(Trouble::Cleanup, &server).await;
    assert!(chain(&state.error).starts_with("ModelError"));
    assert_eq!(state.cleanup_errors.len(), 1);
}

#[tokio::test]
async fn a_completion_that_cannot_be_rendered_is_empty_and_cleanups_run() {
    for (trouble, expected) in [(Trouble::Render, "Error"), (Trouble::PanicInRender, "Error -> Panic")] {
        let (state, ran) = tidied(trouble, &ModelServer::arithmetic()).await;
        assert_eq!((chain(&state.error).as_str(), ran.len()), (expected, 3));
        assert_eq!(state.completion, Some(Messages::new()));
    }
}

#[tokio::test]
async fn a_panic_of_a_hook_is_the_error_of_its_rollout() {
    let (state, ran) = tidied(Trouble::PanicInAnswer, &ModelServer::arithmetic()).await;
    assert_eq!((stop_condition(&state), chain(&state.error).as_str()), ("has_error", "Error -> Panic"));
    assert!(state.error.as_ref().unwrap().to_string().contains("speechless"));
    assert_eq!((ran.len(), state.trajectory.len()), (3, 1));
    assert_eq!(said(state.completion.as_deref().unwrap()), ["assistant: 4"]);
}

#[tokio::test]
async fn a_rejected_key_ends_more_than_the_rollout_after_its_cleanups() {
    let notes = Notes::default();
    let server = ModelServer::always(ModelReply::unauthorized());
    let end = try_run(&Tidy(notes.clone(), Trouble::None), &Limits::default(), &server).await;
    assert!(matches!(end, Err(Halt::Unauthorized(error)) if error.kind == ErrorKind::Unauthorized));
    assert_eq!(names(&notes), ALL);
}

#[tokio::test]
async fn a_cancelled_rollout_gives_up_its_turn_and_runs_its_cleanups() {
    let hold = Hold::new();
    let server = ModelServer::always(ModelReply::text("4").held(&hold));
    let (notes, cancel) = (Notes::default(), CancellationToken::new());
    let interaction = Tidy(notes.clone(), Trouble::None);
    let limits = Limits::default();
    let cancelled = async {
        hold.waiting(1).await;
        cancel.cancel();
    };
    let rollout = rollout(&interaction, &limits, input("?"), model(&server), &cancel);
    let (end, ()) = tokio::join!(rollout, cancelled);
    assert_eq!(end.unwrap_err(), Halt::Cancelled);
    assert_eq!(names(&notes), ALL);
    // The connection is closed, so an unread answer costs nothing.
    hold.waiting(0).await;
}

#[tokio::test]
async fn cleanups_run_when_the_time_is_up() {
    long_enough_async(Duration::from_millis(50), async |timeout| {
        let hold = Hold::new();
        let server = ModelServer::always(ModelReply::text("4").held(&hold));
        let notes = Notes::default();
        let limits = Limits { timeout: Some(timeout), ..Limits::default() };
        let state = try_run(&Tidy(notes.clone(), Trouble::None), &limits, &server).await.unwrap();
        assert_eq!(names(&notes), ALL);
        // Otherwise the time was up before the first turn.
        if server.served() == 0 {
            return None;
        }
        assert_eq!((stop_condition(&state), state.trajectory.len()), ("timeout_reached", 0));
        Some(())
    })
    .await;
}

/// Waits for something that never comes.
struct NeverReady;

#[async_trait]
impl Interaction for NeverReady {
    async fn setup_state(&self, _state: &mut State) -> Result<(), Error> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_timeout_before_the_first_turn_is_not_the_models_fault() {
    let server = ModelServer::always(ModelReply::text("4"));
    let limits = Limits { timeout: Some(Duration::from_millis(1)), ..Limits::default() };
    let state = try_run(&NeverReady, &limits, &server).await.unwrap();
    assert_eq!(stop_condition(&state), "has_error");
    assert!(state.error.unwrap().kind.is_retried());
    assert_eq!(server.served(), 0);
}
