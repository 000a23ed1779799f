//! Events of a desktop, as ids and payloads.

use std::collections::HashMap;

use zgvariant::Variant;

use super::super::rng::Rng;

/// An event's id and payload.
pub(super) type Happening = (Vec<u8>, Option<Variant<'static>>);

const APPS: [&str; 8] = [
    "org.gnome.Nautilus",
    "org.gnome.Totem",
    "org.chromium.Chromium",
    "com.endlessm.encyclopedia.en",
    "org.libreoffice.LibreOffice.writer",
    "org.gnome.Terminal",
    "org.kde.gcompris",
    "com.valvesoftware.Steam",
];

const WINDOWS_APP_OPENED: u128 = 0xcf09194a_3090_4782_ab03_87b2f1515aed;
const LINUX_PACKAGE_OPENED: u128 = 0x0bba3340_52e3_41a2_854f_e6ed36621379;
const LAUNCHED_INSTALLER: u128 = 0xe98bf6d9_8511_44f9_a1bd_a1d0518934b9;
const UPDATER_FAILURE: u128 = 0x927d0f61_4890_4912_a513_b2cb0205908f;
const STARTUP_FINISHED: u128 = 0xbf7e8aed_2932_455c_a28e_d407cfd5aaba;
const PROGRAM_DUMPED_CORE: u128 = 0xed57b607_4a56_47f1_b1e4_5dc3e74335ec;
const PARENTAL_CONTROLS_BLOCKED: u128 = 0x9d03daad_f1ed_41a8_bc5a_6b532c075832;
const COMPUTER_INFORMATION: u128 = 0x81f303aa_448d_443d_97f9_8d8a9169321c;
const DAILY_APP_USAGE: u128 = 0x49d0451a_f706_4f50_81d2_70cc0ec923a4;
const DAILY_USERS: u128 = 0xa3826320_9192_446a_8886_e2129c0ce302;
const RAM_SIZE: u128 = 0xaee94585_07a2_4483_a090_25abda650b12;
const DISK_SPACE: u128 = 0x5f58024f_3b99_47d3_a17f_1ec876acd97e;
const OS_VERSION: u128 = 0x1fa16a31_9225_467e_8502_e31806e9b4eb;
const APP_ADDED_TO_DESKTOP: u128 = 0x51640a4e_79aa_47ac_b7e2_d3106a06e129;
const LIVE_USB_BOOTED: u128 = 0x56be0b38_e47b_4578_9599_00ff9bda54bb;
const APP_IS_OPEN: u128 = 0xb5e11a3d_13f8_4219_84fd_c9ba0bf3d1f0;
/// An event id that is not in the registry.
const UNKNOWN: u128 = 0x0123456789abcdef_0123456789abcdef;

fn happening(id: u128, payload: impl Into<Variant<'static>>) -> Happening {
    (id.to_be_bytes().to_vec(), Some(payload.into()))
}

fn silent(id: u128) -> Happening {
    (id.to_be_bytes().to_vec(), None)
}

fn app(rng: &mut Rng) -> &'static str {
    APPS[rng.below(APPS.len() as u64) as usize]
}

pub(super) fn bytes16(rng: &mut Rng) -> [u8; 16] {
    (u128::from(rng.next()) << 64 | u128::from(rng.next())).to_be_bytes()
}

/// A singular event of version 3.
pub(super) fn singular3(rng: &mut Rng) -> Happening {
    match rng.below(10) {
        0..=2 => common(rng),
        3 => happening(PARENTAL_CONTROLS_BLOCKED, app(rng)),
        4 => {
            let gigabytes = |rng: &mut Rng| 1 + rng.below(512) as u32;
            let processor = vec![("Intel(R) Celeron(R) N4020".to_owned(), 2u16, 2800.0, "x86".to_owned())];
            let [ram, total, used, free] = [gigabytes(rng), gigabytes(rng), gigabytes(rng), gigabytes(rng)];
            happening(COMPUTER_INFORMATION, (ram, total, used, free, processor))
        }
        5 => happening(UNKNOWN, rng.next()),
        _ => common(rng),
    }
}

/// A singular event of both versions.
fn common(rng: &mut Rng) -> Happening {
    match rng.below(6) {
        0 => happening(WINDOWS_APP_OPENED, vec![format!("C:\\setup-{}.exe", rng.below(1000)), "/S".to_owned()]),
        1 => happening(LINUX_PACKAGE_OPENED, vec![format!("/home/u/Downloads/{}.deb", app(rng))]),
        2 => happening(LAUNCHED_INSTALLER, (app(rng).to_owned(), vec!["--now".to_owned()])),
        3 => happening(UPDATER_FAILURE, ("eos-updater".to_owned(), format!("{} cannot be fetched", app(rng)))),
        4 => {
            let mut micros = || rng.below(20_000_000);
            let times = [micros(), micros(), micros(), micros(), micros()];
            let [firmware, loader, kernel, initrd, userspace] = times;
            happening(STARTUP_FINISHED, (firmware, loader, kernel, initrd, userspace, times.iter().sum::<u64>()))
        }
        _ => {
            let (binary, signal) = (format!("/usr/bin/{}", app(rng)), 6 + rng.below(6) as i32);
            // The library sorts the keys.
            let core = HashMap::from([("binary", Variant::from(binary)), ("signal", Variant::from(signal))]);
            happening(PROGRAM_DUMPED_CORE, core)
        }
    }
}

/// A daily aggregate of version 3.
pub(super) fn aggregate3(rng: &mut Rng) -> Happening {
    if rng.one_in(4) { silent(DAILY_USERS) } else { happening(DAILY_APP_USAGE, app(rng)) }
}

/// A singular event of version 2.
pub(super) fn singular2(rng: &mut Rng) -> Happening {
    match rng.below(10) {
        0 => happening(RAM_SIZE, 2048 + rng.below(30_000) as u32),
        1 => happening(DISK_SPACE, (500u32, rng.below(300) as u32, 200u32)),
        2 => happening(OS_VERSION, ("\"Endless\"".to_owned(), "\"3.9.7\"".to_owned(), String::new())),
        3 => happening(APP_ADDED_TO_DESKTOP, app(rng)),
        4 => silent(LIVE_USB_BOOTED),
        5 => happening(UNKNOWN, rng.next()),
        _ => common(rng),
    }
}

/// An aggregate of version 2.
pub(super) fn aggregate2(rng: &mut Rng) -> (Vec<u8>, Variant<'static>) {
    (UNKNOWN.to_be_bytes().to_vec(), Variant::from(app(rng)))
}

/// An event sequence (version 2).
pub(super) fn sequence2(rng: &mut Rng) -> (Vec<u8>, Variant<'static>) {
    (APP_IS_OPEN.to_be_bytes().to_vec(), Variant::from(app(rng)))
}
