//! Divides the steps of a stage into layers.

use std::ops::Range;
use std::path::Path;

use super::key::KEY_CHARS;
use super::plan::{Action, Step};
use crate::image::Image;
use crate::store::{LAYERS, slot::ID_CHARS};

/// The most layers of a built image. Overlayfs accepts 500, but each one makes finding a file slower.
const MAX_LAYERS: usize = 128;

/// The first kernel that takes the layers of a mount one by one. Older ones take them as one text.
const ONE_BY_ONE: (u32, u32) = (6, 8);

/// The most bytes of such a text: a page, with room for the other options of the mount.
const MAX_TEXT: usize = 3400;

/// How many layers can be added to an image on a kernel of this release; at least one.
pub(crate) fn room(base: &Image, state_dir: &Path, release: &str) -> usize {
    let room = if takes_one_by_one(release) {
        MAX_LAYERS.saturating_sub(base.depth())
    } else {
        let dir = state_dir.as_os_str().len() + LAYERS.len() + KEY_CHARS + ID_CHARS;
        // The slashes, the name of the part, and a separator.
        let each = dir + 16;
        MAX_TEXT.saturating_sub(base.stack_bytes()) / each
    };
    room.max(1)
}

fn takes_one_by_one(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    major.zip(minor).is_some_and(|version| version >= ONE_BY_ONE)
}

/// The steps of each layer: a command or a copy, with the directories that are created before it. Steps at the end
/// that change no file are in none.
///
/// If there are more than `most`, the first ones share a layer, because the first lines of a Dockerfile change least.
pub(crate) fn divide(steps: &[Step], most: usize) -> Vec<Range<usize>> {
    let mut ends = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        if matches!(step.action, Action::Run(_) | Action::Copy(_)) {
            ends.push(number + 1);
        }
    }
    let rest = ends.last().copied().unwrap_or_default();
    if steps[rest..].iter().any(|step| step.action != Action::Nothing) {
        ends.push(steps.len());
    }
    let mut from = 0;
    let separate = ends.split_off(ends.len().saturating_sub(most));
    separate.into_iter().map(|end| std::mem::replace(&mut from, end)..end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::{parse::parse, plan::plan};
    use crate::image::{ImageConfig, Layer};

    fn divided(instructions: &str, most: usize) -> Vec<(usize, usize)> {
        let dockerfile = parse(&format!("FROM x\n{instructions}")).unwrap();
        let plan = plan(&dockerfile, 0, &ImageConfig::default(), &[]).unwrap();
        divide(&plan.steps, most).into_iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn each_command_and_each_copy_is_a_layer() {
        assert_eq!(divided("RUN a\nRUN b\nCOPY c /c\n", 9), [(0, 1), (1, 2), (2, 3)]);
        assert_eq!(divided("ENV A=1\nRUN a\nCMD x\n", 9), [(0, 2)]);
        assert_eq!(divided("WORKDIR /a\nUSER u\nCOPY . .\nWORKDIR /b\nCMD x\n", 9), [(0, 3), (3, 5)]);
        assert!(divided("ENV A=1\nCMD x\n", 9).is_empty() && divided("", 9).is_empty());
    }

    #[test]
    fn the_first_of_too_many_share_a_layer() {
        let many = "RUN x\n".repeat(5);
        assert_eq!(divided(&many, 5).len(), 5);
        assert_eq!(divided(&many, 3), [(0, 3), (3, 4), (4, 5)]);
        assert_eq!(divided(&many, 1), [(0, 5)]);
    }

    #[test]
    fn older_kernels_take_as_many_layers_as_fit_into_a_page() {
        let state = tempfile::tempdir().unwrap();
        let layer = Layer::open(state.path()).unwrap();
        let base = Image::from_layers(&vec![layer; 10], ImageConfig::default(), "base");
        let room = |release| room(&base, Path::new("/home/user/.cache/rollout"), release);
        for newer in ["6.8.0", "6.18.44-fc", "7.0-rc1"] {
            assert_eq!(room(newer), 118, "{newer}");
        }
        for older in ["6.7.9", "6.1.0-18-amd64", "5.15.0", "unknown"] {
            assert!((25..40).contains(&room(older)), "{older}: {}", room(older));
        }
        let full = Image::from_layers(
            &vec![Layer::open(state.path()).unwrap(); 200],
            ImageConfig::default(),
            "full",
        );
        assert_eq!(super::room(&full, state.path(), "6.8"), 1);
        assert_eq!(super::room(&full, state.path(), "6.1"), 1);
    }
}
