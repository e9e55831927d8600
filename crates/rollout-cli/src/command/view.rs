//! `rollout view`: the web viewer, served or exported.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use rollout::display::count;
use rollout_view::{ViewError, ViewOptions, Viewer, export};

use super::{open_files, warnings};
use crate::{
    args::View,
    exit::{Exit, Failure, hinted},
    signals,
};

/// Serves the pages until it is stopped, or writes them.
pub(crate) async fn run(args: View) -> Result<Exit, Failure> {
    let options =
        ViewOptions { excluded_tags: args.exclude_tag, live_messages: Some(rollout::live::messages_so_far) };
    if let Some(to) = args.export {
        return write(args.directory, to, options).await;
    }
    let cancel = signals::listen()?;
    open_files::allow_connections();
    let viewer = Viewer::open(&args.directory, args.bind, options).await.map_err(hinted(ViewError::hint))?;
    super::print(&viewer.url())?;
    if !args.bind.ip().is_loopback() {
        let note =
            "pages and the token are not encrypted; for access from other machines, use a proxy with TLS";
        writeln!(anstream::stderr().lock(), "{}", warnings::line("view", note))?;
    }
    tokio::select! {
        biased;
        () = cancel.now.cancelled() => Ok(Exit::Cancelled),
        served = viewer.serve(cancel.graceful.clone()) => {
            served?;
            Ok(Exit::Success)
        }
    }
}

async fn write(directory: PathBuf, to: PathBuf, options: ViewOptions) -> Result<Exit, Failure> {
    let written = {
        let to = to.clone();
        tokio::task::spawn_blocking(move || export(&directory, &to, options)).await?
    };
    let written = written.map_err(hinted(ViewError::hint))?;
    let index = Path::new(&to).join("index.html");
    super::print(&format!(
        "{} in {}; open {}",
        count(written.jobs, "job"),
        count(written.files, "file"),
        index.display()
    ))?;
    Ok(Exit::Success)
}
