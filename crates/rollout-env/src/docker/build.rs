//! Builds an image with an engine's builder, until it is finished or cancelled.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
};

use bollard::{
    Docker as Api,
    auth::DockerCredentials,
    body_try_stream,
    errors::Error,
    models::{BuildInfo, BuildInfoAux, CreateImageInfo},
    query_parameters::{BuildImageOptions, BuilderVersion},
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use tokio::sync::mpsc;

use super::{names, settings::Builder, trace::Trace};
use crate::{
    blocking::blocking,
    log::{LogTail, LogWriter},
};
use rollout_core::redact::Redactor;

/// The number of log lines kept for error messages.
const TAIL_LINES: usize = 40;

/// The log of a build or a pull. The file is created with the first write.
pub(super) struct BuildLog {
    path: PathBuf,
    writer: Option<LogWriter>,
    tail: LogTail,
}

impl BuildLog {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), writer: None, tail: LogTail::default() }
    }

    /// Appends text. An error of this machine's disk must not fail a build on the engine.
    pub(super) async fn write(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let written = async {
            if self.writer.is_none() {
                self.open().await?;
            }
            match &mut self.writer {
                Some(writer) => {
                    writer.write(text.as_bytes()).await?;
                    writer.flush().await
                }
                None => Ok(()),
            }
        };
        if let Err(error) = written.await {
            tracing::warn!(path = %self.path.display(), %error, "cannot write the build log");
        }
    }

    async fn open(&mut self) -> io::Result<()> {
        let path = self.path.clone();
        let file = blocking(move || {
            if let Some(dir) = path.parent() {
                std::fs::create_dir_all(dir)?;
            }
            std::fs::OpenOptions::new().create(true).append(true).open(&path)
        });
        let writer = LogWriter::new(file.await?, &Redactor::default());
        self.tail = writer.tail();
        self.writer = Some(writer);
        Ok(())
    }

    /// The last lines that were written.
    pub(super) fn tail(&self) -> String {
        self.tail.last_lines(TAIL_LINES)
    }

    pub(super) async fn finish(&mut self) {
        if let Some(writer) = &mut self.writer {
            let _ = writer.finish().await;
        }
    }
}

/// An image to build.
pub(super) struct ImageBuild {
    /// The path of the Dockerfile in the archive.
    pub(super) dockerfile: String,
    /// The context as a tar archive.
    pub(super) archive: BoxStream<'static, io::Result<Bytes>>,
    pub(super) tag: String,
    /// Values of `ARG`.
    pub(super) args: Vec<(String, String)>,
    /// The stage to build.
    pub(super) target: Option<String>,
    pub(super) platform: String,
    pub(super) no_cache: bool,
    /// The network of commands; `None` means the engine's default.
    pub(super) network: Option<String>,
    pub(super) labels: HashMap<String, String>,
    pub(super) credentials: HashMap<String, DockerCredentials>,
}

/// Builds an image. Dropping the future closes the connection, which cancels the build in the engine.
pub(super) async fn build(
    api: Api,
    builder: Builder,
    order: ImageBuild,
    log: &mut BuildLog,
) -> Result<(), Error> {
    match builder {
        Builder::Classic => follow(request(&api, builder, order), log).await,
        Builder::BuildKit => follow(on_separate_runtime(api, order), log).await,
    }
}

fn request(
    api: &Api,
    builder: Builder,
    order: ImageBuild,
) -> impl Stream<Item = Result<BuildInfo, Error>> + '_ {
    let options = BuildImageOptions {
        dockerfile: order.dockerfile,
        t: Some(order.tag),
        buildargs: (!order.args.is_empty()).then(|| order.args.into_iter().collect()),
        target: order.target.unwrap_or_default(),
        platform: order.platform,
        nocache: order.no_cache,
        networkmode: order.network,
        labels: Some(order.labels),
        rm: true,
        forcerm: true,
        version: match builder {
            Builder::Classic => BuilderVersion::BuilderV1,
            Builder::BuildKit => BuilderVersion::BuilderBuildKit,
        },
        session: (builder == Builder::BuildKit)
            .then(|| format!("rollout-{}{}", names::random(), names::random())),
        ..BuildImageOptions::default()
    };
    api.build_image(options, Some(order.credentials), Some(body_try_stream(order.archive)))
}

/// Builds on a separate runtime. The client library leaves a task behind that serves BuildKit's session as long
/// as its runtime lives: it would keep one connection open per build, and a cancelled build would continue.
fn on_separate_runtime(api: Api, order: ImageBuild) -> impl Stream<Item = Result<BuildInfo, Error>> + Unpin {
    let (sender, mut receiver) = mpsc::channel(16);
    let work = async move |sender: mpsc::Sender<_>| {
        let mut news = std::pin::pin!(request(&api, Builder::BuildKit, order));
        loop {
            let item = tokio::select! {
                () = sender.closed() => return,
                item = news.next() => item,
            };
            let Some(item) = item else { return };
            if sender.send(item).await.is_err() {
                return;
            }
        }
    };
    let spawned = std::thread::Builder::new().name("buildkit".to_owned()).spawn(move || {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                runtime.block_on(work(sender));
                runtime.shutdown_background();
            }
            Err(err) => {
                let _ = sender.blocking_send(Err(Error::IOError { err }));
            }
        }
    });
    let failed = spawned.err().map(|err| Err(Error::IOError { err }));
    futures_util::stream::iter(failed)
        .chain(futures_util::stream::poll_fn(move |context| receiver.poll_recv(context)))
}

/// Writes the progress of a build to its log, until its end.
async fn follow(news: impl Stream<Item = Result<BuildInfo, Error>>, log: &mut BuildLog) -> Result<(), Error> {
    let mut news = std::pin::pin!(news);
    let mut trace = Trace::default();
    let mut pulls = Pulls::default();
    while let Some(item) = news.next().await {
        let info = item?;
        if let Some(text) = &info.stream {
            log.write(&without_colours(text)).await;
        }
        if let Some(status) = &info.status {
            log.write(&pulls.line(info.id.as_deref(), status)).await;
        }
        if let Some(BuildInfoAux::BuildKit(status)) = info.aux {
            log.write(&trace.lines(status)).await;
        }
    }
    Ok(())
}

/// Removes the colours that the classic builder adds to stderr.
fn without_colours(text: &str) -> String {
    text.replace("\u{1b}[91m", "").replace("\u{1b}[0m", "")
}

/// The last reported status of each layer of a pull.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    reported: HashMap<String, String>,
}

impl Pulls {
    /// A line about a layer, if its status changed.
    pub(super) fn line(&mut self, layer: Option<&str>, status: &str) -> String {
        let Some(layer) = layer else { return format!("{status}\n") };
        let status_before = self.reported.insert(layer.to_owned(), status.to_owned());
        if status_before.as_deref() == Some(status) { String::new() } else { format!("{layer}: {status}\n") }
    }

    /// The same, for an event of a separate pull.
    pub(super) fn news(&mut self, info: &CreateImageInfo) -> String {
        info.status.as_deref().map(|status| self.line(info.id.as_deref(), status)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_reports_its_steps_and_not_its_progress() {
        let mut pulls = Pulls::default();
        let text: String = [
            (Some("latest"), "Pulling from library/debian"),
            (Some("ab12"), "Downloading"),
            (Some("ab12"), "Downloading"),
            (Some("ab12"), "Pull complete"),
            (None, "Status: Downloaded newer image for debian:latest"),
        ]
        .into_iter()
        .map(|(layer, status)| pulls.line(layer, status))
        .collect();
        insta::assert_snapshot!(text, @"
        latest: Pulling from library/debian
        ab12: Downloading
        ab12: Pull complete
        Status: Downloaded newer image for debian:latest
        ");
    }

    #[tokio::test]
    async fn an_empty_log_creates_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("environment/build.txt");
        let mut log = BuildLog::new(&path);
        log.finish().await;
        assert!(!path.parent().unwrap().exists());
        log.write("one\ntwo\n").await;
        log.finish().await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(log.tail(), "one\ntwo");
    }
}
