//! The methods of the simulated shop, and what calls what: a tree in which the profiler finds the program.

use super::super::rng::Rng;
use super::program::FILES;

/// A method: its name, the label of its frames, its file, the line of its definition, whether an object's own.
pub(super) type StackMethod = (Option<&'static str>, &'static str, &'static str, u64, bool);

/// What of 1,000 samples in a method are in itself, and how many are in each method that it calls.
type CallShares = (u64, &'static [(usize, u64)]);

const AR: &str = FILES[4];
const PUMA: &str = "/usr/lib/ruby/gems/3.1.0/gems/puma-6.0.0/lib/puma/thread_pool.rb";
const RACK: &str = "/usr/lib/ruby/gems/3.1.0/gems/rack-2.2.4/lib/rack/method_override.rb";
const ERB: &str = "/srv/shop/app/views/checkout.html.erb";

/// The methods. A sample begins in the first or second one.
pub(super) static METHODS: [StackMethod; 19] = [
    (None, "<main>", FILES[0], 0, false),
    (None, "block in Puma::ThreadPool#spawn_thread", PUMA, 98, false),
    (Some("call"), "Rack::MethodOverride#call", RACK, 17, false),
    (Some("create"), "Shop::CheckoutController#create", FILES[2], 9, false),
    (None, "block in Shop::CheckoutController#create", FILES[2], 9, false),
    (Some("show"), "Shop::CheckoutController#show", FILES[2], 31, false),
    (Some("total"), "Shop::Cart#total", FILES[1], 41, false),
    (Some("add"), "Shop::Cart#add", FILES[1], 18, false),
    (None, "block (2 levels) in Shop::Cart#total", FILES[1], 41, false),
    (Some("load"), "JSON.load", FILES[3], 520, true),
    (Some("where"), "ActiveRecord::QueryMethods#where", AR, 685, false),
    (Some("build_where"), "ActiveRecord::QueryMethods#build_where", AR, 1021, false),
    (Some("each"), "Array#each", "<cfunc>", 0, false),
    (Some("new"), "Class#new", "<cfunc>", 0, false),
    (Some("exec_params"), "PG::Connection#exec_params", "<cfunc>", 0, false),
    (Some("gsub"), "String#gsub", "<cfunc>", 0, false),
    (Some("_render"), "_app_views_checkout_html_erb", ERB, 1, false),
    (Some("walk"), "Shop::Catalogue#walk", "/srv/shop/app/models/catalogue.rb", 66, false),
    (Some("sleep"), "Kernel#sleep", "<cfunc>", 0, false),
];

static CALLS: [CallShares; 19] = [
    (20, &[(18, 980)]),
    (10, &[(2, 990)]),
    (30, &[(3, 550), (5, 420)]),
    (25, &[(4, 700), (9, 150), (10, 125)]),
    (40, &[(6, 600), (7, 360)]),
    (30, &[(10, 300), (16, 450), (17, 220)]),
    (60, &[(12, 940)]),
    (300, &[(13, 200), (10, 500)]),
    (550, &[(17, 250), (10, 200)]),
    (800, &[(13, 200)]),
    (150, &[(11, 350), (14, 500)]),
    (600, &[(15, 250), (13, 150)]),
    (50, &[(8, 950)]),
    (1000, &[]),
    (1000, &[]),
    (1000, &[]),
    (300, &[(12, 400), (15, 300)]),
    // A tree of categories.
    (450, &[(17, 450), (13, 100)]),
    (1000, &[]),
];

/// The deepest stack.
const MAX_DEPTH: usize = 60;

/// The methods of a stack, innermost first.
pub(super) fn stack(rng: &mut Rng) -> Vec<&'static StackMethod> {
    let mut at = usize::from(!rng.one_in(8));
    let mut stack = vec![&METHODS[at]];
    while stack.len() < MAX_DEPTH {
        let (own, callees) = CALLS[at];
        let mut left = rng.below(1000);
        if left < own {
            break;
        }
        left -= own;
        let Some(callee) = callees.iter().find_map(|(callee, share)| match left.checked_sub(*share) {
            Some(rest) => {
                left = rest;
                None
            }
            None => Some(*callee),
        }) else {
            break;
        };
        at = callee;
        stack.push(&METHODS[at]);
    }
    stack.reverse();
    stack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_called_and_its_shares_add_up() {
        for (own, callees) in CALLS {
            assert_eq!(own + callees.iter().map(|(_, share)| share).sum::<u64>(), 1000);
        }
        let mut rng = Rng::new(1, 0);
        let stacks: Vec<_> = (0..20_000).map(|_| stack(&mut rng)).collect();
        for method in &METHODS {
            assert!(stacks.iter().flatten().any(|frame| frame.1 == method.1), "{}", method.1);
        }
        assert!(stacks.iter().any(|stack| stack.len() > 15));
    }
}
