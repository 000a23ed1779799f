//! The simulated shop: its methods, and the call trees of visits.

use super::super::rng::Rng;

/// An instrumented method.
#[derive(Debug)]
pub(super) struct Method {
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) signature: &'static str,
    /// The methods that it may call, and how often at most.
    calls: &'static [(usize, u64)],
    /// Its own exception, if it can fail.
    fails_with: Option<(&'static str, &'static str)>,
    /// The type of the trace that it starts.
    pub(super) begins: Option<&'static str>,
}

const fn method(
    class: &'static str,
    name: &'static str,
    signature: &'static str,
    calls: &'static [(usize, u64)],
) -> Method {
    Method { class, name, signature, calls, fails_with: None, begins: None }
}

/// Callees come after their callers, so that no call is recursive.
pub(super) static METHODS: [Method; 16] = [
    Method {
        begins: Some("HTTP"),
        ..method(WEB, "showProduct", "(J)Lshop/Page;", &[(4, 1), (5, 1), (8, 12), (15, 3)])
    },
    Method { begins: Some("HTTP"), ..method(WEB, "showCart", "(J)Lshop/Page;", &[(4, 1), (6, 1), (15, 2)]) },
    Method {
        begins: Some("HTTP"),
        ..method(WEB, "checkOut", "(JLjava/lang/String;)V", &[(4, 1), (6, 1), (7, 1), (15, 1)])
    },
    Method { begins: Some("JOB"), ..method("shop.jobs.Stock", "recount", "()I", &[(9, 40), (10, 2)]) },
    method("shop.web.Sessions", "find", "(Ljava/lang/String;)Lshop/Session;", &[(11, 1)]),
    method("shop.Catalogue", "product", "(J)Lshop/Product;", &[(11, 1), (9, 1)]),
    method("shop.Cart", "load", "(J)Lshop/Cart;", &[(9, 15)]),
    Method {
        fails_with: Some(("shop.PaymentRefused", "the card was refused")),
        begins: Some("PAYMENT"),
        ..method("shop.Payments", "charge", "(JLjava/math/BigDecimal;)V", &[(12, 2), (10, 1)])
    },
    method("shop.Catalogue", "related", "(J)Ljava/util/List;", &[(9, 1), (13, 4)]),
    Method {
        fails_with: Some(("java.sql.SQLTimeoutException", "no answer within 3000 ms")),
        ..method(JDBC, "executeQuery", "(Ljava/lang/String;)Ljava/sql/ResultSet;", &[(14, 3)])
    },
    method(JDBC, "executeUpdate", "(Ljava/lang/String;)I", &[(14, 1)]),
    method("shop.Cache", "get", "(Ljava/lang/Object;)Ljava/lang/Object;", &[]),
    Method {
        fails_with: Some(("java.io.IOException", "connection reset by peer")),
        ..method("shop.net.Client", "post", "(Ljava/net/URI;[B)I", &[])
    },
    method("shop.Price", "rounded", "()Ljava/math/BigDecimal;", &[]),
    method("org.h2.engine.Session", "prepare", "(Ljava/lang/String;)V", &[]),
    method("shop.web.Template", "render", "(Ljava/util/Map;)Ljava/lang/String;", &[(13, 8)]),
];

const WEB: &str = "shop.web.Controller";
const JDBC: &str = "org.h2.jdbc.JdbcPreparedStatement";
/// Traces start with one of the first methods.
const ROOTS: u64 = 4;
/// One of this many calls fails, of those that can fail.
const FAILURES: u64 = 60;

/// One call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The index of its method in [`METHODS`].
    pub(super) method: usize,
    pub(super) start_nanos: u64,
    pub(super) end_nanos: u64,
    /// The number of instrumented calls, including this one and those that the agent left out.
    pub(super) calls: u64,
    pub(super) attributes: Vec<(&'static str, AttributeValue)>,
    /// Attributes of the enclosing trace of a type, or of any type (`None`).
    pub(super) upward: Option<(Option<&'static str>, &'static str, AttributeValue)>,
    pub(super) children: Vec<Call>,
    pub(super) thrown: Option<Thrown>,
}

/// The exception that ended a call.
#[derive(Clone, Debug)]
pub(super) enum Thrown {
    /// It threw the exception itself.
    New(Exception),
    /// A call that it made threw the exception, and it did not catch it.
    Passed { id: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Exception {
    pub(super) id: u64,
    pub(super) class: &'static str,
    pub(super) message: &'static str,
    /// The index of each method in [`METHODS`], and a line; innermost first.
    pub(super) stack: Vec<(usize, i64)>,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(super) enum AttributeValue {
    Text(String),
    Int(i64),
    Float(f64),
    Bool(bool),
    List(Vec<AttributeValue>),
    Nothing,
}

/// Generates one trace.
pub(super) struct Visit<'a> {
    pub(super) rng: &'a mut Rng,
    /// How many events may still be generated: each record is one, and each log of an exception.
    pub(super) left: u64,
    /// Whether callers through which an exception passes also log it.
    pub(super) passes: bool,
    /// Whether traces may nest.
    pub(super) nests: bool,
    path: Vec<usize>,
    exceptions: u64,
}

impl<'a> Visit<'a> {
    pub(super) fn new(rng: &'a mut Rng, left: u64, passes: bool, nests: bool) -> Self {
        Visit { rng, left, passes, nests, path: Vec::new(), exceptions: 0 }
    }

    /// The call tree of a visit that ends at `end_nanos`. At least one event must be left.
    pub(super) fn call_tree(&mut self, end_nanos: u64) -> Call {
        let root = self.rng.below(ROOTS) as usize;
        let mut call = self.call(root, 0);
        let duration = call.end_nanos;
        shift(&mut call, end_nanos.saturating_sub(duration));
        call
    }

    /// A call that starts at `start_nanos`.
    fn call(&mut self, method: usize, start_nanos: u64) -> Call {
        self.left -= 1;
        self.path.push(method);
        let known = &METHODS[method];
        let mut now = start_nanos + self.rng.below(80_000);
        let mut call = Call {
            method,
            start_nanos,
            end_nanos: now,
            calls: 1 + if self.rng.one_in(5) { self.rng.below(300) } else { 0 },
            attributes: self.attributes(method),
            upward: None,
            children: Vec::new(),
            thrown: None,
        };
        if method == 7 && self.nests && self.rng.one_in(3) {
            call.upward = Some((Some("HTTP"), "order", AttributeValue::Int(self.rng.below(100_000) as i64)));
        } else if method == 6 && self.nests {
            call.upward = Some((None, "cart.items", AttributeValue::Int(self.rng.below(15) as i64)));
        }
        'calls: for &(callee, most) in known.calls {
            for _ in 0..1 + self.rng.below(most) {
                if self.left == 0 {
                    break 'calls;
                }
                let child = self.call(callee, now);
                now = child.end_nanos + self.rng.below(20_000);
                call.calls += child.calls;
                let passed = child.thrown.as_ref().map(Thrown::id);
                call.children.push(child);
                if let Some(id) = passed {
                    // A caller that catches it continues.
                    if self.passes && self.left > 0 && !self.rng.one_in(4) {
                        self.left -= 1;
                        call.thrown = Some(Thrown::Passed { id });
                        break 'calls;
                    }
                }
            }
        }
        if let (Some((class, message)), None, 1..) = (known.fails_with, &call.thrown, self.left)
            && self.rng.one_in(FAILURES)
        {
            self.left -= 1;
            self.exceptions += 1;
            let line = |rng: &mut Rng| if rng.one_in(9) { -1 } else { 20 + rng.below(700) as i64 };
            let stack = self.path.iter().rev().map(|method| (*method, line(self.rng))).collect();
            // Like the identity hash of real agents: 31 bits.
            let id = self.rng.below(1 << 31) | 1;
            call.thrown = Some(Thrown::New(Exception { id, class, message, stack }));
        }
        call.end_nanos = now + 1 + self.rng.below(400_000);
        self.path.pop();
        call
    }

    fn attributes(&mut self, method: usize) -> Vec<(&'static str, AttributeValue)> {
        let rng = &mut *self.rng;
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        match method {
            0..=2 => {
                let path = ["product", "cart", "checkout"][method];
                let url = AttributeValue::Text(format!("http://shop.example/{path}/{}", rng.below(5000)));
                let mut attributes = vec![("http.url", url), ("http.status", AttributeValue::Int(200))];
                attributes.push(("thread.name", AttributeValue::Text(format!("http-{}", 1 + rng.below(8)))));
                if rng.one_in(4) {
                    attributes.push(("user", AttributeValue::Nothing));
                    attributes.push(("load", AttributeValue::Float(rng.below(400) as f64 / 100.0)));
                    attributes.push(("mobile", AttributeValue::Bool(rng.one_in(2))));
                }
                attributes
            }
            3 => vec![
                ("local.service", text("stock")),
                ("shelves", AttributeValue::List(vec![AttributeValue::Int(3), text("B-7")])),
            ],
            7 => vec![("amount", AttributeValue::Text(format!("{}.95", rng.below(300))))],
            9 | 10 if rng.one_in(3) => {
                let table = *rng.pick(&["products", "carts", "orders"]);
                vec![(
                    "db.statement",
                    AttributeValue::Text(format!("select * from {table} where id = {}", rng.below(9999))),
                )]
            }
            _ => Vec::new(),
        }
    }
}

impl Call {
    /// The type of the trace that starts here; only the outermost call starts one if traces may not nest.
    pub(super) fn begins(&self, is_root: bool, nests: bool) -> Option<&'static str> {
        METHODS[self.method].begins.filter(|_| is_root || nests)
    }

    /// Whether an exception left the call.
    pub(super) fn has_failed(&self) -> bool {
        self.thrown.is_some()
    }
}

impl Thrown {
    fn id(&self) -> u64 {
        match self {
            Thrown::New(exception) => exception.id,
            Thrown::Passed { id } => *id,
        }
    }
}

fn shift(call: &mut Call, nanos: u64) {
    call.start_nanos += nanos;
    call.end_nanos += nanos;
    call.children.iter_mut().for_each(|child| shift(child, nanos));
}
