//! The part of `rollout clean` for a Docker engine.

use std::time::Duration;

use rollout::environment::docker::{Engine, EngineError, EngineImage, ImageKind};

use super::{Fate, Row, by_flag};
use crate::{args::Clean, report::text::count};

/// Removes unused containers, images and caches of an engine. Only objects that Rollout created are removed, except
/// in the build cache, where the engine does not record the owner.
pub(super) async fn clean(args: &Clean, engine: &Engine) -> Result<Vec<Row>, EngineError> {
    let (mut rows, gone) = containers(args, engine).await?;
    rows.extend(images(args, engine, &gone).await?);
    rows.extend(build_cache(args, engine).await?);
    Ok(rows)
}

/// Lists the containers that Rollout created, and returns the names of the removed ones.
async fn containers(args: &Clean, engine: &Engine) -> Result<(Vec<Row>, Vec<String>), EngineError> {
    let dead = engine.sweep(args.dry_run).await?;
    let running = engine.running().await?;
    let preserved = engine.preserved().await?;
    if args.preserved && !args.dry_run {
        engine.remove_containers(preserved.iter().map(|kept| &kept.name)).await?;
    }
    let shared = engine.sweep_shared(args.dry_run).await?;
    let row = |fate, number: usize, what| Row { fate, what, some: number > 0, size: None };
    let mut rows = vec![
        row(Fate::Goes, dead.len(), count(dead.len() as u64, "container") + " of ended runs"),
        row(Fate::Stays, running.len(), count(running.len() as u64, "container") + " of running jobs"),
        row(
            Fate::by("--preserved", args.preserved),
            preserved.len(),
            count(preserved.len() as u64, "preserved container"),
        ),
    ];
    if !shared.is_empty() {
        let what = format!("{} networks and volumes", shared.len());
        rows.push(row(Fate::Goes, shared.len(), what + " of ended runs"));
    }
    let preserved = preserved.into_iter().filter(|_| args.preserved);
    Ok((rows, dead.into_iter().chain(preserved).map(|leftover| leftover.name).collect()))
}

/// Lists the images that Rollout built. Pulled images belong to the user. A dry run counts an image as unused if its
/// containers would be removed.
async fn images(args: &Clean, engine: &Engine, gone: &[String]) -> Result<Vec<Row>, EngineError> {
    let found = engine.images().await?;
    let is_free = |image: &&EngineImage| image.used_by.iter().all(|container| gone.contains(container));
    let free = || found.iter().filter(is_free).map(|image| image.reference.as_str());
    let removed: Vec<String> = if args.images && !args.dry_run {
        // Later kinds are built from earlier ones, and an image with dependent images cannot be removed.
        engine.remove_images(free().rev()).await?
    } else {
        free().map(str::to_owned).collect()
    };
    let nouns = [
        (ImageKind::Build, "built image"),
        (ImageKind::Environment, "environment image"),
        (ImageKind::Snapshot, "agent snapshot"),
    ];
    Ok(nouns
        .into_iter()
        .flat_map(|(kind, noun)| {
            let of_kind = found.iter().filter(|image| image.kind == kind);
            let stays = |image: &EngineImage| !removed.contains(&image.reference);
            let rows =
                by_flag(noun, "--images", args.images, of_kind.map(|image| (stays(image), image.size)));
            // The size of an image includes layers that it shares with other images.
            rows.into_iter().map(|row| match row.size {
                Some(size) if row.some => Row { size: Some(format!("up to {size}")), ..row },
                _ => row,
            })
        })
        .collect())
}

async fn build_cache(args: &Clean, engine: &Engine) -> Result<Option<Row>, EngineError> {
    // Podman has no separate build cache: its build layers are images.
    if engine.facts().name == "podman" {
        return Ok(None);
    }
    let bytes = if args.cache && !args.dry_run {
        engine.prune_build_cache(Duration::ZERO).await?
    } else {
        engine.build_cache_size().await?
    };
    let what = "build cache, shared with other builds".to_owned();
    Ok(Some(Row::sized(Fate::by("--cache", args.cache), what, bytes > 0, bytes)))
}
