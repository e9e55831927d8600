//! The stages of a Dockerfile, their bases, and which stages the last one needs.

use super::error::ImageBuildError;
use super::expand::{Expander, set, value_of};
use super::parse::{Dockerfile, Flag, Kind, Stage};
use super::plan::{syntax, unknown_flag};

/// The base of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Base {
    /// An earlier stage.
    Stage(usize),
    /// An image by its reference.
    Image(String),
}

/// Finds the base of each stage.
pub(crate) fn bases(dockerfile: &Dockerfile) -> Result<Vec<Base>, ImageBuildError> {
    let globals = global_args(dockerfile)?;
    let lookup = |name: &str| value_of(&globals, name).or_else(|| value_of(&platform_args(), name));
    let expander = Expander::new(dockerfile.escape, &lookup);
    let mut bases = Vec::new();
    for (index, stage) in dockerfile.stages.iter().enumerate() {
        let expand = |text: &str| expander.word(text).map_err(|error| syntax(&stage.at, &error));
        let image = expand(&stage.image)?;
        if image.trim().is_empty() {
            let message = format!("`{}` is empty after its variables are replaced", stage.image);
            return Err(ImageBuildError::Syntax { at: stage.at.clone(), message });
        }
        for flag in &stage.flags {
            let value = expand(flag.value.as_deref().unwrap_or_default())?;
            if flag.name != "platform" {
                return Err(unknown_flag(&stage.at, "FROM", flag));
            }
            let mut parts = value.split('/');
            if parts.next() != Some("linux") || parts.next().is_some_and(|arch| arch != docker_arch()) {
                return Err(ImageBuildError::Unsupported {
                    at: stage.at.clone(),
                    what: format!("the platform {value}"),
                    instead: format!("this machine runs linux/{}", docker_arch()),
                });
            }
        }
        bases
            .push(earlier_stage(&dockerfile.stages[..index], &image).map_or(Base::Image(image), Base::Stage));
    }
    Ok(bases)
}

/// Lists the stages that the last one needs, in the order to build them.
pub(crate) fn needed_stages(dockerfile: &Dockerfile, bases: &[Base]) -> Vec<usize> {
    let mut needed = vec![false; bases.len()];
    if let Some(last) = needed.last_mut() {
        *last = true;
    }
    for index in (0..bases.len()).rev() {
        if !needed[index] {
            continue;
        }
        if let Base::Stage(earlier) = bases[index] {
            needed[earlier] = true;
        }
        let earlier = &dockerfile.stages[..index];
        for instruction in &dockerfile.stages[index].instructions {
            let origins: Vec<Base> = match &instruction.kind {
                Kind::Copy { flags, .. } => copy_origin(dockerfile, index, flags).into_iter().collect(),
                Kind::Run { flags, .. } => mount_origins(earlier, flags),
                _ => Vec::new(),
            };
            for origin in origins {
                if let Base::Stage(stage) = origin {
                    needed[stage] = true;
                }
            }
        }
    }
    (0..bases.len()).filter(|index| needed[*index]).collect()
}

/// Evaluates the `ARG`s before the first `FROM`.
pub(crate) fn global_args(dockerfile: &Dockerfile) -> Result<Vec<(String, String)>, ImageBuildError> {
    let mut globals = Vec::new();
    for (at, arguments) in &dockerfile.global_args {
        for word in Expander::new(dockerfile.escape, &|_| None).split(arguments) {
            let Some((name, default)) = word.split_once('=') else { continue };
            let lookup = |name: &str| value_of(&globals, name).or_else(|| value_of(&platform_args(), name));
            let value = Expander::new(dockerfile.escape, &lookup)
                .word(default)
                .map_err(|error| syntax(at, &error))?;
            set(&mut globals, name.to_owned(), value);
        }
    }
    Ok(globals)
}

/// The arguments that every build provides to an `ARG` that declares them.
pub(crate) fn platform_args() -> Vec<(String, String)> {
    let mut args = Vec::new();
    for side in ["TARGET", "BUILD"] {
        args.push((format!("{side}PLATFORM"), format!("linux/{}", docker_arch())));
        args.push((format!("{side}OS"), "linux".to_owned()));
        args.push((format!("{side}ARCH"), docker_arch().to_owned()));
        args.push((format!("{side}VARIANT"), String::new()));
    }
    args
}

pub(crate) fn docker_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Finds the stage or image that `--from` of a `COPY` in the given stage names.
pub(crate) fn copy_origin(dockerfile: &Dockerfile, index: usize, flags: &[Flag]) -> Option<Base> {
    let reference = flags.iter().find(|flag| flag.name == "from")?.value.clone()?;
    Some(stage_or_image(&dockerfile.stages[..index], &reference))
}

/// The stages and images that the mounts of a `RUN` name.
fn mount_origins(earlier: &[Stage], flags: &[Flag]) -> Vec<Base> {
    let mounts = flags.iter().filter(|flag| flag.name == "mount");
    let fields = mounts.flat_map(|flag| flag.value.as_deref().unwrap_or_default().split(','));
    fields.filter_map(|field| Some(stage_or_image(earlier, field.strip_prefix("from=")?))).collect()
}

/// Finds a stage by its name or number; any other reference is an image.
pub(crate) fn stage_or_image(earlier: &[Stage], reference: &str) -> Base {
    let by_index = reference.parse::<usize>().ok().filter(|number| *number < earlier.len());
    earlier_stage(earlier, reference)
        .or(by_index)
        .map_or_else(|| Base::Image(reference.to_owned()), Base::Stage)
}

fn earlier_stage(stages: &[Stage], name: &str) -> Option<usize> {
    stages.iter().rposition(|stage| stage.name.as_deref() == Some(name.to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::parse::parse;

    #[test]
    fn from_is_expanded_with_global_arguments_and_finds_earlier_stages() {
        let dockerfile = parse(
            "ARG TAG=1\nARG IMAGE=base:$TAG\nFROM $IMAGE AS Build\nFROM build\nFROM --platform=$BUILDPLATFORM ${TAG:-x}\n",
        )
        .unwrap();
        assert_eq!(
            bases(&dockerfile).unwrap(),
            [Base::Image("base:1".to_owned()), Base::Stage(0), Base::Image("1".to_owned())]
        );
    }

    #[test]
    fn only_stages_that_the_last_one_needs_are_built() {
        let needed = |text: &str| {
            let dockerfile = parse(text).unwrap();
            needed_stages(&dockerfile, &bases(&dockerfile).unwrap())
        };
        assert_eq!(needed("FROM a\nFROM b\n"), [1]);
        assert_eq!(needed("FROM a AS a1\nFROM b AS b1\nFROM a1\nCOPY --from=b1 x y\n"), [0, 1, 2]);
        assert_eq!(needed("FROM a AS a1\nFROM b\nFROM c\nCOPY --from=0 x y\n"), [0, 2]);
        assert_eq!(needed("FROM a AS self\nFROM c AS me\nCOPY --from=me x y\n"), [1]);
    }
}
