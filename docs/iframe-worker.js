// Search in pages that are opened as files (file://), where browsers start no workers: a Worker's script runs in a hidden
// frame instead. The theme's plugin `offline` would load such a script from a network.
if (location.protocol === "file:") {
  const inside = `
    <script>
      postMessage = (data) => parent.dispatchEvent(new CustomEvent("frame-worker", {detail: [window, data]}));
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
        const script = document.createElement("script");
        Object.assign(script, {src: url, onload: done, onerror: failed});
        document.body.appendChild(script);
      })), Promise.resolve());
    </script>`;
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const own = this.frame.contentWindow;
      own.document.open();
      own.document.write(`<body>${inside}<script src="${url}"></script></body>`);
      own.document.close();
      this.ready = new Promise((done) => (own.onload = done));
      this.listen = ({detail: [from, data]}) => {
        if (from !== own) return;
        const event = new MessageEvent("message", {data});
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      addEventListener("frame-worker", this.listen);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      removeEventListener("frame-worker", this.listen);
      this.frame.remove();
    }
  };
}
