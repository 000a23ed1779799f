//! A headless Chromium that a test drives through chromedriver.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use thirtyfour::prelude::{WebDriverError, WebDriverResult};
use thirtyfour::session::http::{Body, HttpClient};
use thirtyfour::{By, ChromiumLikeCapabilities, DesiredCapabilities, LoggingPrefsLogLevel, WebDriver, WebElement};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::live::PATIENCE;
use crate::live::binary::end_with_this_thread;
use tributary_testing::wait::poll_async;

/// Browsers at a time: each takes processors and memory from the others.
static BROWSERS: Semaphore = Semaphore::const_new(2);

/// A browser with one tab, and its driver.
pub(crate) struct Browser {
    driver: WebDriver,
    process: Driver,
    _permit: SemaphorePermit<'static>,
}

/// A chromedriver process, which ends with its browser when it is dropped.
struct Driver(Child);

impl Browser {
    /// Opens a browser of 1280 × 800 points. None, and a line that says so: Chromium is not installed.
    pub(crate) async fn open() -> Option<Browser> {
        Browser::open_with(&[]).await
    }

    /// The same with further arguments of Chromium.
    pub(crate) async fn open_with(arguments: &[&str]) -> Option<Browser> {
        let permit = BROWSERS.acquire().await.unwrap();
        let Some((process, port)) = Driver::start() else {
            println!("skipped: chromium and chromedriver are not installed, so the page is not tested");
            return None;
        };
        let mut capabilities = DesiredCapabilities::chrome();
        // In a container the sandbox and /dev/shm are not there.
        let always = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--lang=en"];
        for argument in always.iter().chain(arguments) {
            capabilities.add_arg(argument).unwrap();
        }
        capabilities.set_browser_log_level(LoggingPrefsLogLevel::All).unwrap();
        let driver = WebDriver::builder(format!("http://127.0.0.1:{port}"), capabilities).client(Http::new());
        let browser = Browser { driver: driver.await.unwrap(), process, _permit: permit };
        // A busy machine draws slowly.
        browser.driver.set_script_timeout(2 * PATIENCE).await.unwrap();
        browser.size(1280, 800).await;
        Some(browser)
    }

    /// Ends the browser. It must not have reported an error.
    pub(crate) async fn close(self) {
        let errors = self.errors().await;
        self.quit().await;
        assert!(errors.is_empty(), "{errors:#?}");
    }

    /// Ends the browser, whatever it reported.
    pub(crate) async fn quit(self) {
        self.driver.quit().await.unwrap();
        drop(self.process);
    }

    /// What the page, the network and the Content-Security-Policy reported as an error since the last call.
    pub(crate) async fn errors(&self) -> Vec<String> {
        let log = self.driver.browser_log().await.unwrap();
        log.into_iter().filter(|entry| entry.level == "SEVERE").map(|entry| entry.message).collect()
    }

    pub(crate) async fn goto(&self, url: &str) {
        self.driver.goto(url).await.unwrap();
    }

    pub(crate) async fn reload(&self) {
        self.driver.refresh().await.unwrap();
    }

    /// The size of the page in points.
    pub(crate) async fn size(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// What the system wishes: light or dark.
    pub(crate) async fn scheme(&self, name: &str) {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": name }] });
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// A command of Chromium's developer tools.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.driver.cdp().send_raw(command, parameters).await.unwrap()
    }

    /// The value of a script's `return`.
    pub(crate) async fn js(&self, script: &str) -> Value {
        let found = self.driver.execute(script.to_owned(), Vec::new()).await;
        found.unwrap_or_else(|error| panic!("{script}: {error}")).json().clone()
    }

    /// Waits until the script returns something other than null, false, 0 and "".
    pub(crate) async fn until(&self, what: &str, script: &str) -> Value {
        let is_something = |found: &Value| {
            !matches!(found, Value::Null | Value::Bool(false)) && *found != json!(0) && *found != json!("")
        };
        if let Some(found) = poll_async(PATIENCE, async || Some(self.js(script).await).filter(is_something)).await {
            return found;
        }
        let seen = self.js("return document.body.innerText.slice(0, 3000)").await;
        let path = self.screenshot("failed").await;
        panic!("this did not happen in time: {what}\n{seen}\n{}\n{:#?}", path.display(), self.errors().await);
    }

    /// Waits until an element has this text among its own.
    pub(crate) async fn until_text(&self, css: &str, text: &str) {
        let script = format!(
            "return [...document.querySelectorAll({})].some((one) => one.innerText.includes({}))",
            json!(css),
            json!(text)
        );
        self.until(&format!("{css} has the text {text:?}"), &script).await;
    }

    /// Waits until no element has this text.
    pub(crate) async fn until_no_text(&self, css: &str, text: &str) {
        let script = format!(
            "return ![...document.querySelectorAll({})].some((one) => one.innerText.includes({}))",
            json!(css),
            json!(text)
        );
        self.until(&format!("{css} has no longer the text {text:?}"), &script).await;
    }

    /// The text of the first such element.
    pub(crate) async fn text(&self, css: &str) -> String {
        self.until(css, &format!("return document.querySelector({})?.innerText", json!(css))).await;
        let text = self.js(&format!("return document.querySelector({}).innerText", json!(css))).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks the first element of this kind with this text, when it is there; any text where it is empty.
    pub(crate) async fn click(&self, css: &str, text: &str) {
        let script = format!(
            "const found = [...document.querySelectorAll({})].find((one) => one.innerText.includes({}) && !one.disabled); \
             found?.click(); return Boolean(found)",
            json!(css),
            json!(text)
        );
        self.until(&format!("{css} with {text:?} can be clicked"), &script).await;
    }

    /// Chooses from the list whose label begins with this text.
    pub(crate) async fn choose(&self, label: &str, value: &str) {
        let script = format!(
            "const list = [...document.querySelectorAll('label')].find((one) => one.innerText.startsWith({}))?.querySelector('select'); \
             const option = list && [...list.options].find((one) => one.value === {}); if (!option) return false; \
             list.value = option.value; list.dispatchEvent(new Event('change')); return true",
            json!(label),
            json!(value)
        );
        self.until(&format!("{value} can be chosen as {label}"), &script).await;
    }

    /// Types into an element, as a person does.
    pub(crate) async fn enter(&self, css: &str, keys: &str) {
        self.find(css).await.send_keys(keys).await.unwrap();
    }

    pub(crate) async fn find(&self, css: &str) -> WebElement {
        self.until(css, &format!("return Boolean(document.querySelector({}))", json!(css))).await;
        self.driver.find(By::Css(css)).await.unwrap()
    }

    /// Types into whatever has the focus.
    pub(crate) async fn press(&self, keys: &str) {
        self.driver.action_chain().send_keys(keys).perform().await.unwrap();
    }

    /// Saves what is in sight below `target/`, as `page/NAME.png`.
    pub(crate) async fn screenshot(&self, name: &str) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("page");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{name}.png"));
        self.driver.screenshot(&path).await.unwrap();
        path
    }
}

impl Driver {
    /// Starts chromedriver on a free port. None: it or the browser is not installed.
    fn start() -> Option<(Driver, u16)> {
        let is_there = |name: &str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
        if !["chromium", "google-chrome", "chrome"].into_iter().any(is_there) {
            return None;
        }
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null());
        end_with_this_thread(&mut command);
        let mut process = command.spawn().ok()?;
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        // It writes more; a full pipe would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Some((Driver(process), port.expect("chromedriver names its port")))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The HTTP client of the driver.
struct Http(Client<HttpConnector, Full<Bytes>>);

impl Http {
    fn new() -> Http {
        Http(Client::builder(TokioExecutor::new()).build_http())
    }
}

#[async_trait::async_trait]
impl HttpClient for Http {
    async fn send(&self, request: Request<Body<'_>>) -> WebDriverResult<Response<Bytes>> {
        let (mut parts, body) = request.into_parts();
        let bytes = match body {
            Body::Empty => Bytes::new(),
            Body::Json(value) => Bytes::from(value.to_string()),
        };
        parts.headers.remove(hyper::header::CONNECTION);
        let failed = |error: &dyn std::error::Error| WebDriverError::RequestFailed(error.to_string());
        let response =
            self.0.request(Request::from_parts(parts, Full::new(bytes))).await.map_err(|error| failed(&error))?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|error| failed(&error))?.to_bytes();
        Ok(Response::from_parts(parts, bytes))
    }

    async fn new(&self) -> Arc<dyn HttpClient> {
        Arc::new(Http::new())
    }
}
