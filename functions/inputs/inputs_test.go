package inputs

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// The inputs are the same on every machine. A change of an input changes these hashes.
func TestInputsAreAlwaysTheSame(t *testing.T) {
	for key, want := range map[string]string{
		Picture: "40c59060d1dc904f", Document: "f8dd39bb1d14909b", Graph: "77136a430af378d5",
		Pattern: "655a6a2a24aee495", Weights: "a0286a055cbfdbef",
	} {
		if key == Weights && testing.Short() {
			continue // they take a second or two, and half a minute with the race detector
		}
		content := Make(key)
		sum := sha256.Sum256(content)
		t.Logf("%s: %d bytes", key, len(content))
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("%s has the hash %s, want %s", key, got, want)
		}
	}
}

func TestTheDocumentPacksLikeProse(t *testing.T) {
	content := document(1 << 20)
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.DefaultCompression)
	_, _ = w.Write(content)
	w.Close()
	if ratio := float64(len(content)) / float64(b.Len()); ratio < 2 || ratio > 5 {
		t.Errorf("it packs %.1f to 1", ratio)
	}
}

// The network recognises patterns that it was not trained with.
func TestTheNetworkKnowsPatterns(t *testing.T) {
	if testing.Short() {
		t.Skip("computes for some seconds")
	}
	network, r := Trained(), numbers("others")
	right, all := 0, 0
	for range 3 {
		for class := range Labels {
			scores := network.Scores(Pixels(drawn(class, r)))
			best := 0
			for n, score := range scores {
				if score > scores[best] {
					best = n
				}
			}
			all++
			if best == class {
				right++
			} else {
				t.Logf("%s taken for %s: %v", Labels[class], Labels[best], scores)
			}
		}
	}
	if right*10 < all*9 {
		t.Errorf("%d of %d right", right, all)
	}
}
