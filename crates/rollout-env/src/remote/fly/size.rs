//! The sizes that Fly sells, and their prices.

use super::settings::FlyKeys;
use crate::remote::backend::{SandboxSize, Wanted};

/// The kind of a machine's CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpuKind {
    /// A small part of a CPU, with short bursts.
    Shared,
    /// Whole CPUs.
    Performance,
}

/// The memory of a task without a limit, in MiB.
const USUAL_MEMORY: u64 = 2048;

/// Memory is sold in steps of this many MiB.
const MEMORY_STEP: u64 = 256;

impl CpuKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Performance => "performance",
        }
    }

    /// The numbers of CPUs that are sold.
    fn counts(self) -> &'static [u64] {
        match self {
            Self::Shared => &[1, 2, 4, 6, 8],
            Self::Performance => &[1, 2, 4, 6, 8, 10, 12, 14, 16],
        }
    }

    /// The least memory for a CPU, which its price includes, and the most, in MiB.
    fn memory(self) -> (u64, u64) {
        match self {
            Self::Shared => (256, 2048),
            Self::Performance => (2048, 8192),
        }
    }

    /// Rounds up to a size that is sold.
    pub(super) fn size(self, wanted: Wanted) -> Result<SandboxSize, String> {
        if wanted.gpus > 0 {
            return Err("the fly provider does not support GPUs".to_owned());
        }
        let cpus = wanted.cpus.map_or(1, |cpus| cpus.millis.div_ceil(1000));
        let memory = wanted.memory.map_or(USUAL_MEMORY, |memory| memory.0.div_ceil(1 << 20));
        let (least, most) = self.memory();
        let count = self.counts().iter().find(|count| **count >= cpus && **count * most >= memory);
        let Some(count) = count else {
            let largest = self.counts().last().copied().unwrap_or_default();
            return Err(format!(
                "the task needs {cpus} CPUs and {memory} MiB of memory, but the largest {} machine of Fly has {largest} \
                 CPUs and {} MiB",
                self.as_str(),
                largest * most
            ));
        };
        Ok(SandboxSize {
            cpu_millis: count * 1000,
            memory_mib: memory.max(count * least).next_multiple_of(MEMORY_STEP),
            storage_mib: wanted.storage.map(|storage| storage.0.div_ceil(1 << 30) * 1024),
        })
    }

    /// The price of a size, in US dollars per second.
    pub(super) fn price(self, size: SandboxSize, keys: &FlyKeys) -> f64 {
        let cpus = size.cpu_millis / 1000;
        let cpu_hour = match self {
            Self::Shared => keys.shared_cpu_hour,
            Self::Performance => keys.performance_cpu_hour,
        };
        let more_mib = size.memory_mib.saturating_sub(cpus * self.memory().0);
        (cpus as f64 * cpu_hour + more_mib as f64 / 1024.0 * keys.gib_hour) / 3600.0
    }
}

#[cfg(test)]
mod tests {
    use rollout_core::quantity::{Bytes, Cpus};

    use super::*;
    use crate::remote::fly::settings::Settings;

    fn wanted(cpu_millis: u64, memory_mib: u64) -> Wanted {
        Wanted {
            cpus: (cpu_millis > 0).then_some(Cpus { millis: cpu_millis }),
            memory: (memory_mib > 0).then_some(Bytes(memory_mib << 20)),
            ..Wanted::default()
        }
    }

    #[test]
    fn sizes_are_rounded_up_to_what_is_sold() {
        use CpuKind::{Performance, Shared};
        for (kind, cpus, memory, expected) in [
            (Shared, 0, 0, (1, 2048)),
            (Shared, 500, 100, (1, 256)),
            (Shared, 2500, 1000, (4, 1024)),
            (Shared, 1000, 2049, (2, 2304)),
            (Shared, 8000, 16384, (8, 16384)),
            (Performance, 0, 0, (1, 2048)),
            (Performance, 1001, 100, (2, 4096)),
            (Performance, 3000, 20000, (4, 20224)),
            (Performance, 1000, 65536, (8, 65536)),
            (Performance, 16000, 131_072, (16, 131_072)),
        ] {
            let size = kind.size(wanted(cpus, memory)).unwrap();
            assert_eq!((size.cpu_millis / 1000, size.memory_mib), expected, "{kind:?} {cpus} {memory}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused_with_the_largest_size() {
        let error = CpuKind::Shared.size(wanted(9000, 100)).unwrap_err();
        assert!(error.contains("8 CPUs and 16384 MiB"), "{error}");
        let error = CpuKind::Performance.size(wanted(1000, 131_073)).unwrap_err();
        assert!(error.contains("16 CPUs and 131072 MiB"), "{error}");
        assert!(CpuKind::Shared.size(Wanted { gpus: 1, ..Wanted::default() }).is_err());
    }

    #[test]
    fn disks_are_rounded_up_to_gibibytes() {
        let wanted = Wanted { storage: Some(Bytes((10 << 30) + 1)), ..Wanted::default() };
        assert_eq!(CpuKind::Shared.size(wanted).unwrap().storage_mib, Some(11 * 1024));
        assert_eq!(CpuKind::Shared.size(Wanted::default()).unwrap().storage_mib, None);
    }

    #[test]
    fn memory_beyond_that_of_the_cpus_costs_extra() {
        let settings = Settings::of_place(&serde_json::Map::new());
        let month = |kind: CpuKind, cpus: u64, memory: u64| {
            let size = kind.size(wanted(cpus * 1000, memory)).unwrap();
            kind.price(size, &settings) * 3600.0 * 720.0
        };
        // The published examples for 30 days.
        for (price, published) in [
            (month(CpuKind::Shared, 1, 256), 2.19),
            (month(CpuKind::Shared, 1, 512), 3.69),
            (month(CpuKind::Shared, 2, 2048), 13.38),
            (month(CpuKind::Performance, 1, 2048), 33.0),
            (month(CpuKind::Performance, 2, 4096), 66.0),
        ] {
            assert!((price - published).abs() < 0.01, "{price} {published}");
        }
    }
}
