//! Checks a build before anything is built.

use std::path::Path;

use super::{ImageBuildError, Location, context::CopyFailure, plan, read, stages};
use super::{
    plan::{Action, Origin},
    stages::Base,
};
use crate::image::ImageConfig;

/// An image that a Dockerfile starts from, or copies from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedImage {
    /// The instruction that names it.
    pub at: Location,
    /// Its reference.
    pub reference: String,
}

/// Reads a Dockerfile, checks that the files it copies exist, and returns the images that it needs. Blocks.
pub fn inspect(context: &Path, dockerfile: &Path) -> Result<Vec<NamedImage>, ImageBuildError> {
    let (_, dockerfile, context) = read(context, dockerfile)?;
    let bases = stages::bases(&dockerfile)?;
    let mut images = Vec::new();
    let mut needs = |at: &Location, base: &Base| {
        if let Base::Image(reference) = base {
            images.push(NamedImage { at: at.clone(), reference: reference.clone() });
        }
    };
    for index in stages::needed_stages(&dockerfile, &bases) {
        needs(&dockerfile.stages[index].at, &bases[index]);
        for step in plan::plan(&dockerfile, index, &ImageConfig::default(), &[])?.steps {
            step.action.origins().into_iter().for_each(|base| needs(&step.at, base));
            let Action::Copy(copy) = &step.action else { continue };
            match &copy.from {
                Origin::Other(_) => {}
                // The variable may be defined by the image.
                Origin::Context if step.at.text.contains('$') => {}
                Origin::Context => {
                    for source in &copy.sources {
                        let found = context.select(source).map(drop);
                        found.map_err(|source| missing(step.at.clone(), source))?;
                    }
                }
            }
        }
    }
    Ok(images)
}

fn missing(at: Location, source: CopyFailure) -> ImageBuildError {
    ImageBuildError::FilesFailed { at, source }
}
