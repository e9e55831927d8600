//! Checks for names and links that cannot leave their directory.

/// Whether this is a plain name of a directory entry, not a path.
pub fn is_name(name: &[u8]) -> bool {
    const LONGEST: usize = 255;
    let special = name.is_empty() || name == b"." || name == b"..";
    !special && name.len() <= LONGEST && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Whether a link at this depth of a tree stays inside the tree, also if it passes through other such links.
///
/// `..` is accepted only at the start: after a name that may itself be a link, it could lead anywhere.
pub fn stays_inside(link: &[u8], depth: usize) -> bool {
    if link.is_empty() || link.starts_with(b"/") || link.contains(&0) {
        return false;
    }
    let names = || link.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    let climbs = names().take_while(|name| *name == b"..").count();
    climbs <= depth && names().skip(climbs).all(|name| name != b"..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_not_names() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b", &[b'x'; 256]] {
            assert!(!is_name(name), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"\xff", b" "] {
            assert!(is_name(name), "{name:?}");
        }
    }

    #[test]
    fn links_that_may_leave_the_tree_are_detected() {
        for (link, depth, inside) in [
            ("file", 0, true),
            ("../file", 1, true),
            ("./../file", 1, true),
            ("../file", 0, false),
            ("../../file", 1, false),
            ("/etc/passwd", 3, false),
            ("//x", 3, false),
            ("a/../../file", 1, false),
            ("a/../b", 0, false),
        ] {
            assert_eq!(stays_inside(link.as_bytes(), depth), inside, "{link} at {depth}");
        }
    }

    proptest! {
        #[test]
        fn a_link_that_stays_inside_never_climbs_past_the_top(
            names in prop::collection::vec(prop_oneof!["\\.\\.", "\\.", "[a-c]", ""], 0..8),
            depth in 0_usize..4,
        ) {
            let link = names.join("/");
            if stays_inside(link.as_bytes(), depth) {
                prop_assert!(!link.starts_with('/'));
                let mut level = i64::try_from(depth).unwrap();
                for name in &names {
                    level += match name.as_str() { ".." => -1, "" | "." => 0, _ => 1 };
                    prop_assert!(level >= 0);
                }
            }
        }
    }
}
