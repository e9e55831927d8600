//! Which addresses belong to this machine, to a private network, or to the internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Url;

/// Whether a URL refers to this machine.
pub fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.is_ok_and(|address| address.is_loopback()) || host == "localhost" || host.ends_with(".localhost")
}

/// Whether a host, with or without a port, is this machine.
pub fn is_loopback_host(host: &str) -> bool {
    is_loopback(&format!("http://{host}"))
}

/// Networks that are not on the public internet: loopback, private, multicast, documentation, reserved.
const PRIVATE_V4: &[([u8; 4], u32)] = &[
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Whether an address can only belong to a server on the internet.
///
/// An IPv6 address that embeds an IPv4 address is judged by that one, because packets go there.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !PRIVATE_V4.iter().any(|(network, prefix)| {
        let differing = address.to_bits() ^ Ipv4Addr::from(*network).to_bits();
        differing >> (32 - prefix) == 0
    })
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let embedded =
        |high: u16, low: u16| is_public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        // Mapped, and translated by NAT64.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        // 6to4.
        [0x2002, high, low, ..] => embedded(high, low),
        // Teredo, benchmarking, ORCHID.
        [0x2001, 0..=0x1ff, ..] => false,
        // Documentation.
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // All addresses assigned so far.
        [first, ..] => first >> 13 == 0b001,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(address: &str) -> bool {
        is_public(address.parse().unwrap())
    }

    #[test]
    fn addresses_of_this_machine_and_its_networks_are_not_public() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.250",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "100::1",
            "2001::1",
            "2001:0:53aa:64c::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2002:c0a8:101::1",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!verdict(address), "{address} passed for public");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2606:4700:4700::1111",
            "2a00:1450:4001:82b::200e",
            "3fff:1000::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert!(verdict(address), "{address} was refused");
        }
    }

    #[test]
    fn only_hosts_of_this_machine_are_loopback() {
        for (host, expected) in [
            ("127.0.0.1", true),
            ("127.0.0.1:5000", true),
            ("localhost:5000", true),
            ("[::1]:5000", true),
            ("127.evil.example", false),
            ("127.0.0.1.evil.example:5000", false),
            ("localhost.evil.example", false),
            ("registry.example.com", false),
            ("10.0.0.1:5000", false),
        ] {
            assert_eq!(is_loopback_host(host), expected, "{host}");
        }
    }

    proptest! {
        #[test]
        fn an_address_within_another_is_judged_like_itself(bits: u32, rest: [u16; 5]) {
            let inner = Ipv4Addr::from_bits(bits);
            let expected = is_public(inner.into());
            let [high, low] = [(bits >> 16) as u16, bits as u16];
            let [a, b, c, d, e] = rest;
            prop_assert_eq!(is_public(inner.to_ipv6_mapped().into()), expected);
            prop_assert_eq!(is_public(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into()), expected);
            prop_assert_eq!(is_public(Ipv6Addr::new(0x2002, high, low, a, b, c, d, e).into()), expected);
        }

        #[test]
        fn local_addresses_of_the_standard_library_are_not_public(bits: u32, wide: u128) {
            let narrow = Ipv4Addr::from_bits(bits);
            if narrow.is_private() || narrow.is_loopback() || narrow.is_link_local() || narrow.is_multicast()
                || narrow.is_broadcast() || narrow.is_documentation() || narrow.is_unspecified() {
                prop_assert!(!is_public(narrow.into()));
            }
            // Random addresses are rarely in a small network: insert the bits into each.
            for (network, prefix) in PRIVATE_V4 {
                let mask = u32::MAX >> prefix;
                let inside = Ipv4Addr::from_bits(Ipv4Addr::from(*network).to_bits() | (bits & mask));
                prop_assert!(!is_public(inside.into()));
            }
            for (network, prefix) in [(0xfc_u128 << 120, 7), (0xfe80_u128 << 112, 10), (0xff_u128 << 120, 8)] {
                let inside = Ipv6Addr::from_bits(network | (wide & (u128::MAX >> prefix)));
                prop_assert!(!is_public(inside.into()));
            }
        }
    }
}
