//! Turns the request of an agent into the request for its upstream.

use axum::http::StatusCode;
use bytes::Bytes;
use reqwest::Url;

use super::Call;
use crate::{
    answer::Refusal,
    dialect::Dialect,
    edit::{self, Fields},
    record::{CallErrorKind, CallRecord},
    translate::{self, AnswerContext, Target, Translated, TranslationError},
    upstream::{Operation, Server},
    usage::tokens::Extras,
};

/// A request for an upstream.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    pub(super) server: &'a Server,
    pub(super) url: Url,
    pub(super) body: Bytes,
    /// What the agent did not ask for.
    pub(super) extras: Extras,
    /// How the response is translated, if the upstream has another dialect.
    pub(super) translation: Option<AnswerContext>,
}

impl Call {
    /// Checks a request and prepares it for its upstream, or refuses it. What is known of it goes into the record.
    pub(super) fn prepare(
        &self,
        fields: Result<Fields, serde_json::Error>,
        streams: bool,
        record: &mut CallRecord,
    ) -> Result<Prepared<'_>, (CallErrorKind, Refusal)> {
        let mut fields =
            fields.map_err(|error| (CallErrorKind::InvalidRequest, Refusal::not_json(&error)))?;
        let asked = self.model.clone().or_else(|| fields.text("model")).unwrap_or_default();
        record.model_asked.clone_from(&asked);
        let Some(route) = self.session.route(&asked) else {
            return Err((CallErrorKind::ModelNotAllowed, Refusal::model(&asked)));
        };
        let (server, model) = (&route.server, route.model(&asked));
        model.clone_into(&mut record.model);
        record.upstream_dialect = server.dialect;
        for spending in [&self.session.spending, &self.shared.spending] {
            spending.admit().map_err(|message| {
                (CallErrorKind::BudgetExhausted, Refusal::budget(self.dialect, message))
            })?;
        }
        if !self.session.provider_tools {
            record.removed = edit::remove_provider_side(&mut fields, self.dialect);
        }
        if self.compacts && server.dialect != self.dialect {
            let message = "the server of the model cannot compact conversations: it does not speak Responses";
            let refusal = Refusal::new(StatusCode::BAD_REQUEST, message);
            return Err((CallErrorKind::NotTranslatable, refusal));
        }
        let mut query = self.query.as_deref();
        let mut translation = None;
        if server.dialect != self.dialect {
            let target = Target { model, asked: &asked, stream: streams, now: record.started.as_second() };
            let translated = translated(fields, self.dialect, server.dialect, &target).map_err(|error| {
                let refusal = Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
                (CallErrorKind::NotTranslatable, refusal)
            })?;
            let context;
            (fields, context, record.notes) = translated;
            translation = Some(context);
            query = (server.dialect == Dialect::Gemini && streams).then_some("alt=sse");
        }
        edit::set_model(&mut fields, server.dialect, model);
        let (extras, operation) = match self.compacts {
            true => (Extras::default(), Operation::Compact),
            false => {
                let extras = edit::ask_for_more(&mut fields, server.dialect, self.session.token_ids);
                (extras, Operation::Generate { stream: streams })
            }
        };
        let url = server.url(operation, model, query);
        Ok(Prepared { server, url, body: fields.into_bytes(), extras, translation })
    }
}

/// A request in the dialect of the upstream, what its answer's translation needs, and what was left out.
fn translated(
    fields: Fields,
    from: Dialect,
    to: Dialect,
    target: &Target<'_>,
) -> Result<(Fields, AnswerContext, Vec<String>), TranslationError> {
    let invalid = |error: serde_json::Error| TranslationError::Invalid {
        field: "body".to_owned(),
        problem: format!("is not JSON: {error}"),
    };
    let body = serde_json::from_slice(&fields.into_bytes()).map_err(invalid)?;
    let Translated { body, context, notes, .. } = translate::request(from, to, body, target)?;
    let fields = Fields::parse(body.to_string().into()).map_err(invalid)?;
    Ok((fields, context, notes))
}
